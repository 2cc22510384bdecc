"""SwiGLU and GeGLU in one operator each: values and gradients of `activation(gate) * up`, for each activation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from kernel_checks import DEVICE, check, drawn, implementation, poisoned
from torch.nn import functional

from diagnose import kernels

__all__ = ["implementation", "poisoned"]
# Poisoned memory comes with deterministic algorithms, and devices do not have all of them.
pytestmark = [
    pytest.mark.usefixtures("implementation"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
    # The interpreter's exponential says where it is inf.
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]

OPERATORS = torch.ops.diagnose


@dataclass(frozen=True)
class Unit:
    """A gated unit: the function of ours, what it replaces, and the operators behind it."""

    fused: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    activation: Callable[[torch.Tensor], torch.Tensor]
    operator: torch._ops.OpOverloadPacket[..., torch.Tensor]
    backward: torch._ops.OpOverloadPacket[..., tuple[torch.Tensor, torch.Tensor]]
    options: tuple[bool, ...] = ()
    """What the operators take beside tensors."""

    def reference(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """What is replaced."""
        return self.activation(gate) * up


UNITS = {
    "swiglu": Unit(kernels.swiglu, functional.silu, OPERATORS.swiglu, OPERATORS.swiglu_backward),
    "geglu": Unit(kernels.geglu, functional.gelu, OPERATORS.geglu, OPERATORS.geglu_backward, (False,)),
    "geglu by tanh": Unit(
        partial(kernels.geglu, approximate="tanh"),
        partial(functional.gelu, approximate="tanh"),
        OPERATORS.geglu,
        OPERATORS.geglu_backward,
        (True,),
    ),
}


@pytest.fixture(params=list(UNITS))
def unit(request: pytest.FixtureRequest) -> Unit:
    return UNITS[request.param]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (5, 33), (2, 3, 1025), (0, 4), (4, 0)])
def test_it_is_the_activation_and_the_product(unit: Unit, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    gate, up = drawn(*shape, seed=1, dtype=dtype, scale=3.0), drawn(*shape, seed=2, dtype=dtype)
    check(unit.fused, unit.reference, [gate, up], backward_twice=True)


def test_the_halves_of_one_projection(unit: Unit) -> None:
    """Rows are read as they lie; the gradients meet again in the projection."""
    check(
        lambda both: unit.fused(*both.chunk(2, dim=-1)),
        lambda both: unit.reference(*both.chunk(2, dim=-1)),
        [drawn(3, 5, 34, seed=3)],
    )


def test_any_layout(unit: Unit) -> None:
    gate = drawn(7, 5, 3, seed=4).detach().permute(2, 1, 0).requires_grad_()
    check(unit.fused, unit.reference, [gate, drawn(3, 5, 7, seed=5)])
    repeated = drawn(1, 7, seed=6).detach().expand(4, 7).requires_grad_()
    check(unit.fused, unit.reference, [repeated, drawn(4, 7, seed=7)])


def test_large_values_of_swiglu_saturate() -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=DEVICE, requires_grad=True)
    swiglu = UNITS["swiglu"]
    check(swiglu.fused, swiglu.reference, [gate, drawn(5, seed=8, dtype=torch.float32)])


@pytest.mark.parametrize("name", ["geglu", "geglu by tanh"])
def test_large_values_of_geglu_saturate(name: str) -> None:
    gate = torch.tensor([-1e19, -1e4, -100.0, 0.0, 100.0, 1e4, 1e19], device=DEVICE, requires_grad=True)
    up = torch.ones(7, device=DEVICE, requires_grad=True)
    found = UNITS[name].fused(gate, up)
    assert torch.equal(found, torch.relu(gate))
    by_gate, by_up = torch.autograd.grad(found.sum(), (gate, up))
    assert by_gate.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    assert torch.equal(by_up, found)


def test_offsets_beyond_two_to_the_31(unit: Unit) -> None:
    """The third row begins 2³¹ elements after the first; of the memory between, no page is ever used."""
    stride = 1 << 30
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        storage = torch.empty(2 * stride + 64, dtype=torch.bfloat16, device=DEVICE)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
    gate = storage.as_strided((3, 64), (stride, 1))
    gate.copy_(drawn(3, 64, seed=9, dtype=torch.bfloat16).detach())
    check(unit.fused, unit.reference, [gate.requires_grad_(), drawn(3, 64, seed=10, dtype=torch.bfloat16)])


def test_mixed_dtypes_are_promoted_as_torch_does(unit: Unit) -> None:
    gate, up = drawn(4, 6, seed=11, dtype=torch.bfloat16), drawn(4, 6, seed=12, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert unit.fused(gate, up).dtype == torch.float32
    check(unit.fused, unit.reference, [gate, up])


def test_in_one_compiled_graph(unit: Unit) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(both: torch.Tensor) -> torch.Tensor:
        gate, up = (both * 2.0).chunk(2, dim=-1)
        return unit.fused(gate, up)

    check(compiled, lambda both: unit.reference(*(both * 2.0).chunk(2, dim=-1)), [drawn(3, 4, 10, seed=13)])


def test_the_operators_keep_their_promises(unit: Unit) -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    gate, up = drawn(6, 8, seed=14).detach().t().requires_grad_(), drawn(8, 6, seed=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(unit.operator, (gate, up, *unit.options))
        torch.library.opcheck(unit.backward, (up.detach(), gate.detach(), up.detach(), *unit.options))


def test_second_derivatives_are_refused(unit: Unit) -> None:
    gate, up = drawn(4, 7, seed=16), drawn(4, 7, seed=17)
    gradient = torch.autograd.grad(unit.fused(gate, up).sum(), gate, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), gate)


def test_two_shapes_are_refused(unit: Unit) -> None:
    with pytest.raises(ValueError, match="one shape"):
        unit.fused(drawn(4, 7, seed=18), drawn(7, seed=19))


def test_an_unknown_form_of_gelu_is_refused() -> None:
    with pytest.raises(ValueError, match="`none` and `tanh`"):
        kernels.geglu(drawn(4, seed=20), drawn(4, seed=21), "erf")  # type: ignore[arg-type]
