"""What the tests of all kernels share: both implementations, outputs that start as nan, references in float64.

`TRITON_INTERPRET=1 pytest tests/test_kernels_*.py` runs the Triton kernels on the CPU; where torch finds a CUDA or ROCm
device, they run there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from diagnose import kernels

DEVICE = "cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1" else "cpu"

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest error, relative to the largest value of what is compared: a few roundings of the dtype."""


@pytest.fixture
def always_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the fused operator on a device too, where torch's own are faster for inputs as small as a test's."""
    monkeypatch.setenv("DIAGNOSE_TUNING", "off")


@pytest.fixture(params=["torch", "triton"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with either implementation; Triton's is skipped where it cannot run."""
    chosen: str = request.param
    monkeypatch.setenv("DIAGNOSE_TUNING", "off")  # the operator itself, whatever is faster
    if chosen == "torch":
        monkeypatch.setenv("DIAGNOSE_KERNELS", "torch")
    elif kernels.backend(DEVICE) != "triton":
        pytest.skip("needs Triton and a device, or TRITON_INTERPRET=1")
    return chosen


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Fill what is allocated without values with nan: what a kernel forgets to write shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all(), "memory is poisoned"
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> torch.Tensor:
    """Fresh numbers that gradients are wanted for."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    return values.to(DEVICE, dtype).requires_grad_()


def labels(rows: int, classes: int, seed: int, ignored: Sequence[int] = (), ignore_index: int = -100) -> torch.Tensor:
    """Fresh class indices, some of them to be ignored."""
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))
    target[list(ignored)] = ignore_index
    return target.to(DEVICE)


def widened(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values in float64, with gradients of their own."""
    return [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in tensors]


def check(
    ours: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]],
    reference: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]],
    inputs: Sequence[torch.Tensor],
    tolerance: float | None = None,
    backward_twice: bool = False,
) -> None:
    """Hold values and gradients against the reference in float64, which gets the same (rounded) inputs."""
    exact_inputs = widened(inputs)
    before = [tensor.detach().clone() for tensor in inputs]
    found, exact = _as_tuple(ours(*inputs)), _as_tuple(reference(*exact_inputs))
    tolerance = TOLERANCES[inputs[0].dtype] if tolerance is None else tolerance
    for one, other in zip(found, exact, strict=True):
        close(one, other, tolerance)
    cotangents = [drawn(*one.shape, seed=90 + place).detach() for place, one in enumerate(exact)]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    exactly_wanted = [tensor for tensor in exact_inputs if tensor.requires_grad]
    given = [cotangent.to(one.dtype) for cotangent, one in zip(cotangents, found, strict=True)]
    gradients = torch.autograd.grad(found, wanted, given, retain_graph=backward_twice)
    exact_gradients = torch.autograd.grad(exact, exactly_wanted, [one.double() for one in given])
    for tensor, one, other in zip(wanted, gradients, exact_gradients, strict=True):
        assert one.dtype == tensor.dtype and one.shape == tensor.shape
        close(one, other, tolerance)
    if backward_twice:
        again = torch.autograd.grad(found, wanted, given)
        assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(before, inputs, strict=True)), "inputs are left alone"


def close(found: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    """The same values but for `tolerance` times the largest of them; nan where nan is due."""
    assert found.shape == exact.shape
    assert torch.equal(found.isnan(), exact.isnan())
    if found.numel() == 0:
        return
    found, exact = found.detach(), exact.detach()
    error = (found.double() - exact).nan_to_num().abs().max()
    assert error <= tolerance * max(1e-3, float(exact.nan_to_num().abs().max())), f"off by {float(error)}"


def _as_tuple(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
