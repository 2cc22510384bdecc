"""SwiGLU in one operator: the values and gradients of `silu(gate) * up`."""

from __future__ import annotations

import warnings

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
]

OPERATORS = torch.ops.diagnose


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What is replaced."""
    return functional.silu(gate) * up


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (5, 33), (2, 3, 1025), (0, 4), (4, 0)])
def test_it_is_the_activation_and_the_product(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(
        kernels.swiglu,
        reference,
        [drawn(*shape, seed=1, dtype=dtype, scale=3.0), drawn(*shape, seed=2, dtype=dtype)],
        backward_twice=True,
    )


def test_the_halves_of_one_projection() -> None:
    """Rows are read as they lie; the gradients meet again in the projection."""
    check(
        lambda fused: kernels.swiglu(*fused.chunk(2, dim=-1)),
        lambda fused: reference(*fused.chunk(2, dim=-1)),
        [drawn(3, 5, 34, seed=3)],
    )


def test_any_layout() -> None:
    gate = drawn(7, 5, 3, seed=4).detach().permute(2, 1, 0).requires_grad_()
    check(kernels.swiglu, reference, [gate, drawn(3, 5, 7, seed=5)])
    check(kernels.swiglu, reference, [drawn(1, 7, seed=6).detach().expand(4, 7).requires_grad_(), drawn(4, 7, seed=7)])


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # The interpreter's exponential says that it is inf.
def test_large_values_saturate() -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=DEVICE, requires_grad=True)
    check(kernels.swiglu, reference, [gate, drawn(5, seed=8, dtype=torch.float32)])


def test_offsets_beyond_two_to_the_31() -> None:
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
    check(kernels.swiglu, reference, [gate.requires_grad_(), drawn(3, 64, seed=10, dtype=torch.bfloat16)])


def test_mixed_dtypes_are_promoted_as_torch_does() -> None:
    gate, up = drawn(4, 6, seed=11, dtype=torch.bfloat16), drawn(4, 6, seed=12, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert kernels.swiglu(gate, up).dtype == torch.float32
    check(kernels.swiglu, reference, [gate, up])


def test_in_one_compiled_graph() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(fused: torch.Tensor) -> torch.Tensor:
        gate, up = (fused * 2.0).chunk(2, dim=-1)
        return kernels.swiglu(gate, up)

    check(compiled, lambda fused: reference(*(fused * 2.0).chunk(2, dim=-1)), [drawn(3, 4, 10, seed=13)])


def test_the_operators_keep_their_promises() -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    gate, up = drawn(6, 8, seed=14).detach().t().requires_grad_(), drawn(8, 6, seed=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(OPERATORS.swiglu, (gate, up))
        torch.library.opcheck(OPERATORS.swiglu_backward, (up.detach(), gate.detach(), up.detach()))


def test_second_derivatives_are_refused() -> None:
    gate, up = drawn(4, 7, seed=16), drawn(4, 7, seed=17)
    gradient = torch.autograd.grad(kernels.swiglu(gate, up).sum(), gate, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(gradient.sum(), gate)


def test_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        kernels.swiglu(drawn(4, 7, seed=18), drawn(7, seed=19))
