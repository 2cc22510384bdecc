"""GeGLU in one operator: the values and gradients of `gelu(gate) * up`, by the error function and by tanh."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Literal

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
Approximate = Literal["none", "tanh"]


def reference(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate = "none") -> torch.Tensor:
    """What is replaced."""
    return functional.gelu(gate, approximate=approximate) * up


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (5, 33), (2, 3, 1025), (0, 4), (4, 0)])
def test_it_is_the_activation_and_the_product(
    approximate: Approximate, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    check(
        partial(kernels.geglu, approximate=approximate),
        partial(reference, approximate=approximate),
        [drawn(*shape, seed=1, dtype=dtype, scale=3.0), drawn(*shape, seed=2, dtype=dtype)],
        backward_twice=True,
    )


def test_the_halves_of_one_projection() -> None:
    """Rows are read as they lie; the gradients meet again in the projection."""
    check(
        lambda fused: kernels.geglu(*fused.chunk(2, dim=-1)),
        lambda fused: reference(*fused.chunk(2, dim=-1)),
        [drawn(3, 5, 34, seed=3)],
    )


def test_any_layout() -> None:
    gate = drawn(7, 5, 3, seed=4).detach().permute(2, 1, 0).requires_grad_()
    check(kernels.geglu, reference, [gate, drawn(3, 5, 7, seed=5)])
    check(kernels.geglu, reference, [drawn(1, 7, seed=6).detach().expand(4, 7).requires_grad_(), drawn(4, 7, seed=7)])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_large_values_saturate(approximate: Approximate) -> None:
    gate = torch.tensor([-1e19, -1e4, -100.0, 0.0, 100.0, 1e4, 1e19], device=DEVICE, requires_grad=True)
    up = torch.ones(7, device=DEVICE, requires_grad=True)
    found = kernels.geglu(gate, up, approximate)
    assert torch.equal(found, torch.relu(gate))
    by_gate, by_up = torch.autograd.grad(found.sum(), (gate, up))
    assert by_gate.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    assert torch.equal(by_up, found)


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
    check(kernels.geglu, reference, [gate.requires_grad_(), drawn(3, 64, seed=10, dtype=torch.bfloat16)])


def test_mixed_dtypes_are_promoted_as_torch_does() -> None:
    gate, up = drawn(4, 6, seed=11, dtype=torch.bfloat16), drawn(4, 6, seed=12, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert kernels.geglu(gate, up).dtype == torch.float32
    check(kernels.geglu, reference, [gate, up])


def test_in_one_compiled_graph() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(fused: torch.Tensor) -> torch.Tensor:
        gate, up = (fused * 2.0).chunk(2, dim=-1)
        return kernels.geglu(gate, up, "tanh")

    def written(fused: torch.Tensor) -> torch.Tensor:
        gate, up = (fused * 2.0).chunk(2, dim=-1)
        return reference(gate, up, "tanh")

    check(compiled, written, [drawn(3, 4, 10, seed=13)])


@pytest.mark.parametrize("by_tanh", [False, True])
def test_the_operators_keep_their_promises(by_tanh: bool) -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    gate, up = drawn(6, 8, seed=14).detach().t().requires_grad_(), drawn(8, 6, seed=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(OPERATORS.geglu, (gate, up, by_tanh))
        torch.library.opcheck(OPERATORS.geglu_backward, (up.detach(), gate.detach(), up.detach(), by_tanh))


def test_second_derivatives_are_refused() -> None:
    gate, up = drawn(4, 7, seed=16), drawn(4, 7, seed=17)
    gradient = torch.autograd.grad(kernels.geglu(gate, up).sum(), gate, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(gradient.sum(), gate)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        kernels.geglu(drawn(4, 7, seed=18), drawn(7, seed=19))
    with pytest.raises(ValueError, match="`none` and `tanh`"):
        kernels.geglu(drawn(4, seed=20), drawn(4, seed=21), "erf")  # type: ignore[arg-type]
