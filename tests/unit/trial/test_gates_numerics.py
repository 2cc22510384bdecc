"""What the numerics gates say of captured numbers, and of the state in which steps end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diagnose.model import GateResult
from diagnose.trial.gates import numerics
from diagnose.trial.gates.captures import Capture, Tensor
from diagnose.trial.gates.step_state import states_differ


def capture(values: Mapping[str, list[float]], kind: str = "gradient") -> Capture:
    tensors = {(0, 0, "loss", "l"): Tensor(0, "loss", "l", (1,), True)}
    arrays = {(0, 0, "loss", "l"): np.ones(1)}
    for name, numbers in values.items():
        key = (0, 0, kind, name)
        tensors[key] = Tensor(0, kind, name, (len(numbers),), bool(np.isfinite(numbers).all()))
        arrays[key] = np.array(numbers)
    return Capture(tensors, arrays)


def accumulating(losses: list[float]) -> Capture:
    """A step of as many backward passes as there are losses, and its gradient."""
    keys = [(0, 0, "loss", f"backward {at}") for at in range(len(losses))]
    gradients = capture({"w": [1.0] * 2000})
    values = {**gradients.values, **{key: np.array([loss]) for key, loss in zip(keys, losses, strict=True)}}
    tensors = {**gradients.tensors, **{key: Tensor(*key[1:], (), True) for key in keys}}
    del tensors[0, 0, "loss", "l"], values[0, 0, "loss", "l"]
    return Capture(tensors, values)


def stepping(draws: list[str], held: list[int | None] | None = None) -> dict[int, list[dict[str, object]]]:
    held = held or [None] * len(draws)
    steps = zip(draws, held, strict=True)
    return {0: [{"random": {"torch": at}, "optimizers": [], "memory_bytes": size} for at, size in steps]}


def test_random_numbers_may_be_drawn_some_steps_ahead_and_not_otherwise() -> None:
    alone = stepping(["a", "b", "c", "d", "e"])
    assert not states_differ(alone, stepping(["a", "b", "c", "d", "e"]))
    assert not states_differ(alone, stepping(["c", "d", "e", "f", "g"]))
    assert not states_differ(stepping(["c", "d", "e", "f", "g"]), alone)
    assert "random numbers of torch" in states_differ(alone, stepping(["a", "b", "x", "y", "z"]))
    assert not states_differ(alone, stepping(["a", "b", "x", "y", "z"]), random=False)


def saving(*states: dict[str, list[int]]) -> dict[int, list[dict[str, object]]]:
    return {0: [{"random": {}, "optimizers": [], "memory_bytes": None, "checkpoints": list(states)}]}


def test_a_checkpoint_keeps_its_names_and_shapes() -> None:
    model, ema = {"a.weight": [4, 2], "a.bias": [4]}, {"w": [3]}
    found = saving(model, ema)
    assert not states_differ(found, saving(dict(model), dict(ema)))
    assert not states_differ(found, saving(ema, model, {"criterion.weight": [9]})), "in another order, and one more"
    assert states_differ(found, saving({"a.weight": [4, 2]}, ema)) == "a checkpoint has no a.bias any more"
    wider = {"a.weight": [8, 2], "a.bias": [4]}
    assert states_differ(found, saving(wider, ema)) == "a.weight of a checkpoint has shape [8, 2], was [4, 2]"
    more = {**model, "mask": [2]}
    assert states_differ(found, saving(more, ema)) == "a checkpoint has mask, which it had not"
    unknown = saving()
    unknown[0][0]["checkpoints"] = None
    assert not states_differ(found, unknown)
    assert not states_differ(unknown, found)


def test_memory_that_grows_every_step_on_the_device_is_told() -> None:
    mib = 1 << 20
    steady, jumps = [9 * mib] * 5, [9 * mib, 9 * mib, 20 * mib, 20 * mib, 20 * mib]
    grows = [(9 + step) * mib for step in range(5)]
    draws = ["a"] * 5
    assert (
        states_differ(stepping(draws, [*steady]), stepping(draws, [*grows]))
        == "the memory held grows by 1.00 MiB every step"
    )
    assert not states_differ(stepping(draws, [*steady]), stepping(draws, [*jumps]))
    assert not states_differ(stepping(draws, [*grows]), stepping(draws, [*grows]))


def test_the_bound_is_three_times_the_originals_error() -> None:
    exact, own = [1.0] * 2000, [1.0 + 1e-4] * 2000
    assert numerics.rounding(capture({"w": own}), capture({"w": [1.0 - 2.9e-4] * 2000}), capture({"w": exact})).passed
    answer = numerics.rounding(capture({"w": own}), capture({"w": [1.0 - 3.1e-4] * 2000}), capture({"w": exact}))
    assert answer.passed is False
    assert (
        answer.detail == "gradient w of step 1: error 0.00031 against the reference, allowed 0.0003 (original 0.0001)"
    )


def test_the_rounding_of_a_declared_format_widens_the_bound() -> None:
    exact, own, format_alone = [1.0] * 2000, [1.0] * 2000, [1.0 + 1e-3] * 2000
    patched = capture({"w": [1.0 - 2e-3] * 2000})
    assert not numerics.rounding(capture({"w": own}), patched, capture({"w": exact})).passed
    assert numerics.rounding(capture({"w": own}), patched, capture({"w": exact}), capture({"w": format_alone})).passed


def test_a_small_tensor_is_judged_by_the_typical_error_where_its_own_is_lucky() -> None:
    reference = capture({"big": [1.0] * 2000, "bias": [1.0]})
    original = capture({"big": [1.0 + 1e-4] * 2000, "bias": [1.0]})
    assert numerics.rounding(original, capture({"big": [1.0 + 1e-4] * 2000, "bias": [1.0 + 1e-4]}), reference).passed
    assert not numerics.rounding(original, capture({"big": [1.0 + 1e-4] * 2000, "bias": [1.01]}), reference).passed


def test_the_losses_of_a_step_are_summed_where_it_takes_another_number_of_backward_passes() -> None:
    four = accumulating([0.5, 0.25, 0.75, 0.5])
    assert numerics.rounding(four, accumulating([0.75, 1.25]), four).passed is True
    assert numerics.rounding(four, accumulating([1.5, 2.5]), four).passed is False


def test_a_reference_that_does_not_follow_the_program_verifies_nothing() -> None:
    answer = numerics.rounding(capture({"w": [1.0] * 9}), capture({"w": [1.0] * 9}), capture({"w": [-1.0] * 9}))
    assert answer.passed is None
    assert "does not follow" in answer.detail


def test_nan_never_passes_and_in_the_original_itself_makes_it_unverified() -> None:
    healthy, broken = capture({"w": [1.0]}), capture({"w": [float("nan")]})
    assert numerics.rounding(healthy, broken, healthy).passed is False
    assert numerics.rounding(broken, broken, healthy).passed is None


def test_an_update_that_a_loss_scaler_leaves_out_is_no_gross_error_and_a_missing_gradient_is() -> None:
    original = capture({"w": [1.0] * 2000, "bias": [1.0]})
    left_out, dropped = capture({}), capture({"w": [1.0] * 2000})
    assert numerics.gross(original, left_out, original, original) is None
    answer = numerics.gross(original, dropped, original, original)
    assert answer is not None
    assert (answer.passed, answer.detail) == (False, "gradient bias of step 1 is missing")


def test_of_what_has_no_reference_no_error_is_gross() -> None:
    original, patched = capture({"w": [1.0] * 2000, "bias": [1.0]}), capture({"w": [9.0] * 2000, "bias": [1.0]})
    assert numerics.gross(original, patched, original, original) is not None
    assert numerics.gross(original, patched, capture({"w": [1.0] * 2000}), original) is None


# Programs whose own rounding hides their gradients, judged by what both compute in float64


def in_float64(patched_exact: float, *, own: float = 1e-3, patched: float = 1e-3) -> GateResult:
    """The answer on a gradient of ones in float64, which `own` and `patched` rounding move in the two programs."""
    exact, moved = capture({"w": [1.0] * 9}), capture({"w": [1.0 + own] * 9})
    return numerics.equal_in_float64(
        moved, capture({"w": [patched_exact + patched] * 9}), exact, capture({"w": [patched_exact] * 9})
    )


def test_a_program_has_strayed_where_rounding_moves_its_gradients_by_a_tenth() -> None:
    exact = capture({"w": [1.0] * 9})
    assert numerics.strays(capture({"w": [1.09] * 9}), exact) is None
    assert numerics.strays(capture({"w": [1.11] * 9}), exact)
    assert numerics.strays(capture({"w": [float("nan")] * 9}), exact)


def test_programs_that_are_equal_in_float64_up_to_one_rounding_of_float32_compute_the_same() -> None:
    answer = in_float64(1 + 2.0**-24)
    assert answer.passed is True
    assert answer.detail.startswith("2 tensors of 1 step are equal in float64, as far as float32 can tell; rounding by")


def test_programs_that_differ_in_float64_by_more_do_not() -> None:
    answer = in_float64(1 + 2.0**-22)
    assert answer.passed is False
    assert answer.detail == "gradient w of step 1: in float64 it differs 2 times as much as float32 can tell"


def test_a_gradient_that_cancels_to_nothing_may_differ_by_the_rounding_of_what_cancels() -> None:
    original = capture({"w": [1.001] * 9, "v": [1.001] * 9, "bias": [0.0]})
    reference = capture({"w": [1.0] * 9, "v": [1.0] * 9, "bias": [0.0]})
    for bias, passes in ((2.0**-41, True), (2.0**-39, False)):
        other = capture({"w": [1.0] * 9, "v": [1.0] * 9, "bias": [bias]})
        assert numerics.equal_in_float64(original, original, reference, other).passed is passes


def test_a_program_that_rounds_more_than_three_times_as_coarsely_does_not_pass() -> None:
    assert in_float64(1.0, patched=2.9e-3).passed is True
    answer = in_float64(1.0, patched=4e-3)
    assert (answer.passed, answer.detail) == (False, "it rounds 4 times as coarsely in the first step")


def test_where_rounding_hides_the_whole_first_step_nothing_is_verified() -> None:
    assert in_float64(1.0, own=0.09, patched=0.09).passed is True
    answer = in_float64(1.0, own=0.1, patched=0.1)
    assert (answer.passed, answer.detail) == (None, "rounding hides every number of the first step")


def test_only_the_first_step_tells_how_coarsely_a_program_rounds() -> None:
    def later(by: float) -> Capture:
        first = capture({"w": [1.0 + by / 10] * 9})
        key = (0, 1, "gradient", "w")
        return Capture(
            {**first.tensors, key: Tensor(1, "gradient", "w", (9,), True)},
            {**first.values, key: np.full(9, 1.0 + by)},
        )

    grown = later(1e-3)
    values = {**grown.values, (0, 1, "gradient", "w"): np.full(9, 1.05)}
    assert numerics.equal_in_float64(grown, Capture(grown.tensors, values), later(0.0), later(0.0)).passed is True


def test_in_float64_too_the_losses_of_a_step_are_summed_where_it_takes_another_number_of_passes() -> None:
    four, two = accumulating([0.5, 0.25, 0.75, 0.5]), accumulating([0.75, 1.25])
    moved = Capture(four.tensors, {key: value * 1.001 for key, value in four.values.items()})
    moved_two = Capture(two.tensors, {key: value * 1.001 for key, value in two.values.items()})
    assert numerics.equal_in_float64(moved, moved_two, four, two).passed is True
    assert numerics.equal_in_float64(moved, moved_two, four, accumulating([1.5, 2.5])).passed is False


def test_what_has_no_reference_in_float64_is_unverified() -> None:
    healthy, broken = capture({"w": [1.0]}), capture({"w": [float("nan")]})
    assert numerics.equal_in_float64(healthy, healthy, broken, healthy).passed is None
    assert numerics.equal_in_float64(healthy, healthy, healthy, broken).passed is False


def test_a_gradient_that_is_zero_but_for_rounding_is_measured_by_the_usual_size_of_the_others() -> None:
    def moved(by: float, bias: float) -> Capture:
        return capture({"w": [1.0 + by] * 2000, "v": [1.0 + by] * 2000, "bias": [bias] * 2000})

    reference, original = moved(0.0, 0.0), moved(1e-4, 1e-6)
    assert numerics.rounding(original, moved(1e-4, 2.9e-4), reference).passed is True
    assert numerics.rounding(original, moved(1e-4, 3.1e-4), reference).passed is False
