"""How much of a state may be on its way back: what a pass held at its places, and what is still to come, decide."""

from __future__ import annotations

from diagnose.kernels.host_memory.prefetch_budget import PART, Ahead


class Curve:
    """What a device holds from look to look."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self) -> int:
        return self.bytes


class Gradient:
    """Something that ends."""


def a_pass(ahead: Ahead, curve: Curve, curve_bytes: list[int], gradient: object) -> list[int]:
    allowed = []
    for place, held in enumerate(curve_bytes):
        curve.bytes = held
        allowed.append(ahead.marked(place, gradient, 0))
    return allowed


def test_what_is_still_to_come_bounds_what_may_be_on_its_way() -> None:
    """A large gradient that comes last leaves room for nothing before it."""
    curve = Curve()
    ahead = Ahead(curve, lambda: None)
    for turn, expected in enumerate([[0] * 4, [0, int(PART * 300), int(PART * 300), int(PART * 600)]]):
        gradient = Gradient()
        assert a_pass(ahead, curve, [1000, 500, 700, 400], gradient) == expected, f"turn {turn}"
        ahead.stepping(0)
        curve.bytes = 100
        ahead.stepped()
        del gradient


def test_a_parameter_that_some_passes_leave_out_does_not_take_an_early_one_for_the_last() -> None:
    """An expert that was used in passes 1 and 3 is used in 1 and 2."""
    curve = Curve()
    ahead = Ahead(curve, lambda: None)
    allowed = []
    for used in ((1, 3), (1, 2), (1, 3)):
        gradient = Gradient()
        for one in (1, 2, 3):
            curve.bytes = 1000
            ahead.marked(0, gradient, 0)
            curve.bytes = 200
            if one in used:
                allowed.append(ahead.marked(1, gradient, 0))
        ahead.stepping(0)
        curve.bytes = 100
        ahead.stepped()
        del gradient
    assert allowed == [0, 0, 0, 0, 0, 0], "the pass before had it at other places"
    gradient = Gradient()
    for one in (1, 2, 3):
        curve.bytes = 1000
        ahead.marked(0, gradient, 0)
        curve.bytes = 200
        if one in (1, 3):
            allowed.append(ahead.marked(1, gradient, 0))
    assert allowed[-2:] == [0, int(PART * 800)]


def test_what_the_step_finds_counts_as_well() -> None:
    curve = Curve()
    ahead = Ahead(curve, lambda: None)
    for _ in range(2):
        gradient = Gradient()
        allowed = a_pass(ahead, curve, [1000, 500], gradient)
        curve.bytes = 900  # gradients of what is not looked at
        ahead.stepping(0)
        curve.bytes = 100
        ahead.stepped()
        del gradient
    assert allowed == [0, int(PART * 100)]


def test_a_pass_that_holds_more_than_the_one_before_is_believed() -> None:
    curve = Curve()
    ahead = Ahead(curve, lambda: None)
    gradient = Gradient()
    a_pass(ahead, curve, [1000, 200], gradient)
    ahead.stepping(0)
    curve.bytes = 100
    ahead.stepped()
    del gradient
    assert a_pass(ahead, curve, [1000, 950], Gradient())[1] <= PART * 50
