"""Residual add and RMSNorm in one operator: the sum, its normalised value, and the gradients of both."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from kernel_checks import DEVICE, TOLERANCES, check, close, drawn, implementation, poisoned
from torch.nn import functional

from diagnose import kernels

__all__ = ["implementation", "poisoned"]
# Poisoned memory comes with deterministic algorithms, and devices do not have all of them.
pytestmark = [
    pytest.mark.usefixtures("implementation"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]

OPERATORS = torch.ops.diagnose
EPS = 1e-5


def reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two calls of torch that are replaced."""
    summed = x + residual
    return functional.rms_norm(summed, summed.shape[-1:], weight, EPS), summed


def ours(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The one call that replaces them."""
    return kernels.add_rms_norm(x, residual, weight, EPS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (2, 3, 128), (7,)])
def test_it_is_the_add_and_the_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    inputs = [drawn(*shape, seed=seed, dtype=dtype) for seed in (1, 2)]
    check(ours, reference, [*inputs, drawn(shape[-1], seed=3, dtype=dtype)], backward_twice=True)


def test_more_rows_than_programs_share_the_weights_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in parts of a power of two; the last part is a rest."""
    if kernels.backend(DEVICE) == "triton":
        from diagnose.kernels.gpu import parts

        monkeypatch.setattr(parts, "PARTS", (4,))
    check(ours, reference, [drawn(21, 9, seed=4), drawn(21, 9, seed=5), drawn(9, seed=6)])


def test_without_a_weight() -> None:
    check(
        lambda x, residual: kernels.add_rms_norm(x, residual, eps=EPS),
        lambda x, residual: (functional.rms_norm(x + residual, (12,), None, EPS), x + residual),
        [drawn(6, 12, seed=7), drawn(6, 12, seed=8)],
    )


@pytest.mark.parametrize("used", [0, 1])
def test_either_output_alone(used: int) -> None:
    """The last norm's sum has no other use; a sum without its norm is a plain addition."""
    weight = drawn(9, seed=9).detach() if used == 1 else drawn(9, seed=9)
    check(
        lambda x, residual, *_: ours(x, residual, weight)[used],
        lambda x, residual, *_: reference(x, residual, weight.detach())[used],
        [drawn(4, 9, seed=10), drawn(4, 9, seed=11)],
    )


def test_strided_rows_and_columns() -> None:
    x = drawn(5, 3, 40, seed=12).detach()[..., 7:28].requires_grad_()
    residual = drawn(21, 3, 5, seed=13).detach().permute(2, 1, 0).requires_grad_()
    weight = drawn(42, seed=14).detach()[::2].requires_grad_()
    check(ours, reference, [x, residual, weight])


def test_no_rows() -> None:
    inputs = [drawn(0, 8, seed=15), drawn(0, 8, seed=16), drawn(8, seed=17)]
    normed, summed = ours(*inputs)
    gradients = torch.autograd.grad((normed.sum(), summed.sum()), inputs)
    assert [gradient.shape for gradient in gradients] == [(0, 8), (0, 8), (8,)]
    assert torch.equal(gradients[2], torch.zeros_like(gradients[2]))


def test_a_half_branch_on_a_wide_stream_as_autocast_leaves_them() -> None:
    """The sum has the wider dtype; each gradient has that of its input."""
    x, residual = drawn(6, 16, seed=18, dtype=torch.bfloat16), drawn(6, 16, seed=19, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        normed, summed = ours(x, residual, drawn(16, seed=20, dtype=torch.float32))
    assert normed.dtype == summed.dtype == torch.float32
    check(ours, reference, [x, residual, drawn(16, seed=20, dtype=torch.float32)], tolerance=1e-2)


def test_rounding_before_the_weight_is_what_hugging_face_does() -> None:
    x, residual = (drawn(6, 64, seed=seed, dtype=torch.bfloat16) for seed in (21, 22))
    weight = drawn(64, seed=23, dtype=torch.bfloat16)
    normed, summed = kernels.add_rms_norm(x, residual, weight, EPS, round_before_weight=True)
    wide = summed.detach().float()
    expected = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(torch.bfloat16)
    close(normed, expected.double(), TOLERANCES[torch.bfloat16])
    if os.environ.get("TRITON_INTERPRET") != "1":  # The interpreter cuts bfloat16 off where devices round it.
        assert (normed != expected).float().mean() < 0.01, "but for the last digit of a sum of squares"
    check(
        lambda x, residual, weight: kernels.add_rms_norm(x, residual, weight, EPS, round_before_weight=True),
        reference,
        [x, residual, weight],
        tolerance=3e-2,
    )


def test_the_sum_may_be_used_again_by_others() -> None:
    """Nothing is written over: a block reads the sum, and so does the next addition."""
    x, residual, weight = drawn(4, 8, seed=24), drawn(4, 8, seed=25), drawn(8, seed=26)

    def twice(add_norm: object, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert callable(add_norm)
        normed, summed = add_norm(x, residual, weight)
        normed, summed = add_norm(normed.tanh(), summed, weight)
        return normed * summed  # type: ignore[no-any-return]

    check(lambda *given: twice(ours, *given), lambda *given: twice(reference, *given), [x, residual, weight])


def test_in_one_compiled_graph() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ours(x * 2.0, residual, weight)

    inputs = [drawn(3, 4, 8, seed=27), drawn(3, 4, 8, seed=28), drawn(8, seed=29)]
    check(compiled, lambda x, residual, weight: reference(x * 2.0, residual, weight), inputs)


def test_the_operators_keep_their_promises() -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    x, residual, weight = drawn(6, 8, seed=30), drawn(6, 8, seed=31), drawn(8, seed=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(OPERATORS.add_rms_norm, (x, residual, weight, EPS, False))
        torch.library.opcheck(OPERATORS.add_rms_norm, (x, residual, None, EPS, True))
        normed, summed, scales = OPERATORS.add_rms_norm(x.detach(), residual.detach(), weight.detach(), EPS, False)
        for by_summed, factor in ((summed, weight.detach()), (None, None)):
            torch.library.opcheck(OPERATORS.add_rms_norm_backward, (normed, by_summed, summed, factor, scales, False))


def test_second_derivatives_are_refused() -> None:
    inputs = [drawn(4, 8, seed=33), drawn(4, 8, seed=34), drawn(8, seed=35)]
    gradient = torch.autograd.grad(ours(*inputs)[0].sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), inputs[0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        kernels.add_rms_norm(drawn(4, 8, seed=36), drawn(8, seed=37))
    with pytest.raises(ValueError, match="a weight"):
        kernels.add_rms_norm(drawn(4, 8, seed=38), drawn(4, 8, seed=39), drawn(4, seed=40))
    with pytest.raises(ValueError, match="at least one element"):
        kernels.add_rms_norm(drawn(4, 0, seed=41), drawn(4, 0, seed=42))
