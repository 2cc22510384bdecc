"""Steps that an optimizer turns around because a gradient is zero but for rounding: which of them the gate excuses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from diagnose.model import GateResult
from diagnose.trial.gates import numerics
from diagnose.trial.gates.adam_sensitivity import reach
from diagnose.trial.gates.captures import Capture, Tensor


def parameters(first: np.ndarray, second: np.ndarray) -> Capture:
    """Two steps of a parameter, with the loss and the gradient that every capture has."""
    kinds = {(0, 0, "loss", "l"): np.ones(1), (0, 0, "gradient", "g"): np.ones(1)}
    values = {**kinds, (0, 0, "parameter", "p"): first, (0, 1, "parameter", "p"): second}
    tensors = {key: Tensor(*key[1:], (len(value),), True, "", len(value)) for key, value in values.items()}
    return Capture(tensors, values)


def test_a_step_made_out_of_rounding_is_excused_in_one_element_of_a_thousand_and_no_further_than_a_step() -> None:
    ideal = np.full(4096, 0.1), np.full(4096, 0.101)  # steps of 0.001
    exact = parameters(*ideal)

    def off(elements: int, by: float) -> GateResult:
        changed = [values.copy() for values in ideal]
        for values in changed:
            values[:elements] += by
        return numerics.rounding(exact, parameters(*changed), exact)

    assert off(4, 0.0015).passed is True
    assert off(5, 0.0015).passed is False
    assert off(4, 0.0025).passed is False


@pytest.mark.parametrize("seed", range(5))
def test_in_a_narrow_format_as_many_steps_are_excused_as_its_rounding_turns(seed: int) -> None:
    draw = np.random.default_rng(seed)
    gradient, before, rate, error = draw.normal(size=1024), np.full(1024, 0.5), 0.001, 0.01

    def stepped(scale: float = 1.0, errors: float = error) -> Capture:
        """One step of Adam, which takes the sign of the gradient, with the errors of a narrow format."""
        inexact = gradient + errors * draw.normal(size=1024)
        values = parameters(before, before - scale * rate * np.sign(inexact))
        return _with_gradient(values, gradient + error * draw.normal(size=1024))

    exact = _with_gradient(parameters(before, before - rate * np.sign(gradient)), gradient)
    lucky = _with_gradient(exact, stepped().values[0, 0, "gradient", "g"])  # an error, of which no sign turned
    assert numerics.rounding(stepped(), stepped(), exact).passed is True
    assert numerics.rounding(lucky, stepped(), exact).passed is True
    assert numerics.rounding(lucky, stepped(scale=1.05), exact).passed is False
    assert numerics.rounding(lucky, stepped(errors=12 * error), exact).passed is False
    one_side = parameters(before, before - rate * np.abs(np.sign(gradient)))
    assert numerics.rounding(lucky, _with_gradient(one_side, gradient), exact).passed is False


@pytest.mark.parametrize("seed", range(5))
def test_two_steps_of_adam_are_explained_by_the_rounding_of_gradients_and_forgotten_ones_are_not(seed: int) -> None:
    draw = np.random.default_rng(seed)
    gradient, noise, other = draw.normal(size=(3, 2, 1024)) * np.array([1, 0.01, 0.01])[:, None, None]
    exact = adam(gradient)
    original = _with_gradient(exact, (gradient + noise)[0])  # an error that the parameter does not show, by luck
    assert numerics.rounding(original, adam(gradient + other), exact).passed is True
    forgotten = gradient + other
    forgotten[1, :300] = 0
    assert numerics.rounding(original, adam(forgotten), exact).passed is False


def adam(gradients: np.ndarray) -> Capture:
    """A parameter after each of two steps with these gradients, and the first of them."""
    mean, square, value, values = 0.0, 0.0, np.full(gradients.shape[1], 0.01), []
    for step, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        value = value - 1e-4 * (mean / (1 - 0.9**step)) / np.sqrt(square / (1 - 0.999**step))
        values.append(value)
    return _with_gradient(parameters(*values), gradients[0])


def _with_gradient(capture: Capture, gradient: np.ndarray) -> Capture:
    key = (0, 0, "gradient", "g")
    tensors = {**capture.tensors, key: Tensor(0, "gradient", "g", (len(gradient),), True)}
    return Capture(tensors, {**capture.values, key: gradient})


def optimizer(kind: str, decay: float = 0.01) -> dict[str, object]:
    """As a capture tells of one with one group."""
    return {"kind": kind, "groups": [{"shapes": [], "settings": {"weight_decay": decay}, "kept": []}]}


ADAMW = optimizer("torch.optim.adamw.AdamW")
PARAMETER = "optimizer 0 group 0 parameter 0"


def seen(values: Capture, gradients: np.ndarray, made: Mapping[str, object] = ADAMW) -> Capture:
    """The same, with the gradients of both steps and the optimizer that took them."""
    named = {key if key[2] != "parameter" else (*key[:3], PARAMETER): value for key, value in values.values.items()}
    named |= {(0, step, "gradient", f"{PARAMETER} update 0"): one for step, one in enumerate(gradients)}
    tensors = {key: Tensor(*key[1:], (len(value),), True, "", len(value)) for key, value in named.items()}
    entry: dict[str, object] = {"optimizers": [made], "memory_bytes": None, "random": {}}
    return Capture(tensors, named, {0: [entry, entry]})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (ADAMW, True),
        (optimizer("torch.optim.adam.Adam", 0), True),
        (optimizer("torch.optim.adam.Adam", 0.1), False),
        (optimizer("train.AdamW"), False),
    ],
    ids=["AdamW", "Adam", "Adam with decay", "another"],
)
def test_a_step_is_excused_where_the_gradient_is_nearly_zero_and_nowhere_else(
    seed: int, made: Mapping[str, object], told: bool
) -> None:
    draw = np.random.default_rng(seed)
    gradient, noise, other = draw.normal(size=(3, 2, 4096)) * np.array([1, 1e-4, 1e-4])[:, None, None]
    small, large = slice(4), slice(4, 8)
    gradient[:, small], gradient[:, large] = 1e-5 * np.sign(gradient[:, small]), 2 * np.sign(gradient[:, large])
    noise[:, small] = other[:, small] = 0
    calm, turned = gradient + other, gradient + other
    turned[1, small] *= -1  # nothing beside the rounding of all others
    exact, original = (seen(adam(each), each, made) for each in (gradient, gradient + noise))
    assert numerics.rounding(original, seen(adam(turned), turned, made), exact).passed is True

    def off(elements: slice) -> Capture:
        """Updates that the gradients do not explain, of as many elements."""
        values = adam(calm)
        for key, value in values.values.items():
            if key[2] == "parameter":
                value[elements] += 1.5e-4
        return seen(values, calm, made)

    assert numerics.rounding(original, off(large), exact).passed is not told


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("growing", [1e-3, 1.0, 1e3])
def test_adam_carries_no_element_further_than_its_gradients_are_off(scale: float, growing: float) -> None:
    draw = np.random.default_rng(0)
    gradient = draw.normal(size=(2, 4096)) * np.array([1, growing])[:, None]
    inexact = gradient + scale * draw.normal(size=gradient.shape)
    exact, other = (seen(adam(each), each) for each in (gradient, inexact))
    for at in range(2):
        key = (0, at, "parameter", PARAMETER)
        errors = np.abs(other.values[key] - exact.values[key])
        bound = reach(other, exact, key, 1e-4)
        assert (3 * errors <= bound + 1e-15).all()  # a third of it is margin
        assert np.any(bound < 2e-4)  # less than was excused of any element


def test_where_no_step_was_taken_none_is_excused_or_forbidden() -> None:
    still = parameters(np.ones(2048), np.ones(2048))
    exact, other = (seen(still, np.full((2, 2048), gradient)) for gradient in (0.0, 1e-9))
    with np.errstate(all="raise"):
        assert reach(other, exact, (0, 1, "parameter", PARAMETER), 0.0) == np.inf
