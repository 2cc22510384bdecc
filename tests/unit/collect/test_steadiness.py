"""When steps are called steady: nothing compiles, medians agree, and training does not live on a loader's stock."""

from __future__ import annotations

from collections.abc import Callable

from diagnose.collect.inside.window.steadiness import Steadiness

MS = 1_000_000


def steps_until_steady(steady: Steadiness, length_ms: Callable[[int], float] = lambda _step: 100) -> int | None:
    """How many steps of these lengths it takes; None for more than two hundred."""
    end = 0
    for step in range(200):
        end += int(length_ms(step) * MS)
        if steady.step_ended(end):
            return step + 1
    return None


class Loader:
    """Four workers that bring four batches together, every so many steps of training."""

    def __init__(self, steps_per_wave: float, held: int = 16) -> None:
        self.held, self.most, self.waited = held, 16, 0
        self._steps_per_wave = steps_per_wave
        self._due = steps_per_wave

    def length_ms(self, step: int) -> float:
        """Of this step, which takes one batch."""
        if step >= self._due:
            self.held = min(self.most, self.held + 4)
            self._due += self._steps_per_wave
        late = 0.0
        if self.held == 0:
            late, self.held = 60.0, 4
            self._due = step + self._steps_per_wave
        self.held -= 1
        self.waited += int(late * MS)
        return 100 + late

    def watched(self) -> Steadiness:
        return Steadiness(
            10,
            input_ns=lambda: self.waited,
            stock=lambda: {"held": self.held, "asked": self.most, "workers": 4, "most": self.most},
        )


def test_steps_of_one_length_are_steady_after_the_warm_up() -> None:
    assert steps_until_steady(Steadiness(10)) == 10


def test_a_loader_that_keeps_up_is_waited_for_no_longer() -> None:
    loader = Loader(steps_per_wave=3)
    assert steps_until_steady(loader.watched(), loader.length_ms) == 10


def test_a_stock_that_neither_grows_nor_shrinks_lasts() -> None:
    steady = Steadiness(10, stock=lambda: {"held": 9, "asked": 16, "workers": 4, "most": 16})
    assert steps_until_steady(steady) == 18


def test_a_stock_that_shrinks_is_used_up_first() -> None:
    loader = Loader(steps_per_wave=6)
    steps = steps_until_steady(loader.watched(), loader.length_ms)
    assert steps is not None
    assert loader.waited > 0, "the traced steps are those that wait"
    assert 16 <= steps <= 60


def test_where_the_stock_shrinks_for_too_long_the_reason_says_so() -> None:
    held = iter(range(100_000, 0, -10))
    steady = Steadiness(
        10, most_steps=40, stock=lambda: {"held": next(held), "asked": 200_000, "workers": 4, "most": 200_000}
    )
    assert steps_until_steady(steady) == 42
    assert steady.reason is not None
    assert "the loader's stock still shrinks" in steady.reason
