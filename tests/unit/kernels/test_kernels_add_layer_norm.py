"""Residual add and LayerNorm in one operator: the sum, its normalised value, and the gradients of both."""

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
EPS = 1e-5


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two calls of torch that are replaced."""
    summed = x + residual
    return functional.layer_norm(summed, summed.shape[-1:], weight, bias, EPS), summed


def ours(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The one call that replaces them."""
    return kernels.add_layer_norm(x, residual, weight, bias, EPS)


def parameters(width: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """A weight and a bias."""
    return [drawn(width, seed=50, dtype=dtype), drawn(width, seed=51, dtype=dtype)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 2), (5, 33), (2, 3, 128), (7,)])
def test_it_is_the_add_and_the_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    inputs = [drawn(*shape, seed=seed, dtype=dtype) for seed in (1, 2)]
    check(ours, reference, inputs + parameters(shape[-1], dtype), backward_twice=True)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    """But for those that storing a sum near 1000 costs: a variance from sums of squares would be off by a tenth."""
    x = (drawn(4, 300, seed=3, dtype=torch.float32).detach() + 1000.0).requires_grad_()
    check(ours, reference, [x, drawn(4, 300, seed=4, dtype=torch.float32), *parameters(300, torch.float32)], 1e-3)


def test_a_deviation_far_below_epsilon() -> None:
    """Epsilon decides there: in float32, float64 would be off by 1e-8 of it."""
    inputs = [drawn(3, 16, seed=seed, scale=1e-5) for seed in (3, 4)]
    check(ours, reference, inputs + parameters(16))


def test_more_rows_than_programs_share_the_gradients_of_weight_and_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in parts of a power of two; the last part is a rest."""
    if kernels.backend(DEVICE) == "triton":
        from diagnose.kernels.gpu import parts

        monkeypatch.setattr(parts, "PARTS", (4,))
    check(ours, reference, [drawn(21, 9, seed=4), drawn(21, 9, seed=5), *parameters(9)])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_weight_and_bias_are_optional(weighted: bool, biased: bool) -> None:
    kept = [part for part, wanted in zip(parameters(12), (weighted, biased), strict=True) if wanted]

    def placed(*parts: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        given = iter(parts)
        return (next(given) if weighted else None), (next(given) if biased else None)

    check(
        lambda x, residual, *parts: ours(x, residual, *placed(*parts)),
        lambda x, residual, *parts: reference(x, residual, *placed(*parts)),
        [drawn(6, 12, seed=7), drawn(6, 12, seed=8), *kept],
    )


@pytest.mark.parametrize("used", [0, 1])
def test_either_output_alone(used: int) -> None:
    """The last norm's sum has no other use; a sum without its norm is a plain addition."""
    frozen = [part.detach() for part in parameters(9)]
    check(
        lambda x, residual: ours(x, residual, *frozen)[used],
        lambda x, residual: reference(x, residual, *(part.double() for part in frozen))[used],
        [drawn(4, 9, seed=10), drawn(4, 9, seed=11)],
    )


def test_strided_rows_and_columns() -> None:
    x = drawn(5, 3, 40, seed=12).detach()[..., 7:28].requires_grad_()
    residual = drawn(21, 3, 5, seed=13).detach().permute(2, 1, 0).requires_grad_()
    weight, bias = (part.detach()[::2].requires_grad_() for part in parameters(42))
    check(ours, reference, [x, residual, weight, bias])


def test_no_rows() -> None:
    inputs = [drawn(0, 8, seed=15), drawn(0, 8, seed=16), *parameters(8)]
    normed, summed = ours(*inputs)
    gradients = torch.autograd.grad((normed.sum(), summed.sum()), inputs)
    assert [gradient.shape for gradient in gradients] == [(0, 8), (0, 8), (8,), (8,)]
    assert not gradients[2].any() and not gradients[3].any()


def test_rows_wider_than_a_program_take_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.kernels.residual_layer_norm.WIDEST", 16)
    check(ours, reference, [drawn(3, 17, seed=17), drawn(3, 17, seed=18), *parameters(17)])


def test_a_half_branch_on_a_wide_stream_as_autocast_leaves_them() -> None:
    """The sum has the wider dtype; each gradient has that of its input."""
    x, residual = drawn(6, 16, seed=18, dtype=torch.bfloat16), drawn(6, 16, seed=19, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        normed, summed = ours(x, residual, *parameters(16, torch.float32))
    assert normed.dtype == summed.dtype == torch.float32
    check(ours, reference, [x, residual, *parameters(16, torch.float32)], tolerance=1e-2)


def test_the_sum_may_be_used_again_by_others() -> None:
    """Nothing is written over: a block reads the sum, and so does the next addition."""

    def twice(add_norm: object, x: torch.Tensor, residual: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        assert callable(add_norm)
        normed, summed = add_norm(x, residual, *parts)
        normed, summed = add_norm(normed.tanh(), summed, *parts)
        return normed * summed  # type: ignore[no-any-return]

    inputs = [drawn(4, 8, seed=24), drawn(4, 8, seed=25), *parameters(8)]
    check(lambda *given: twice(ours, *given), lambda *given: twice(reference, *given), inputs)


def test_in_one_compiled_graph() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return ours(x * 2.0, residual, weight, bias)

    inputs = [drawn(3, 4, 8, seed=27), drawn(3, 4, 8, seed=28), *parameters(8)]
    check(compiled, lambda x, residual, *parts: reference(x * 2.0, residual, *parts), inputs)


def test_the_operators_keep_their_promises() -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    x, residual, (weight, bias) = drawn(6, 8, seed=30), drawn(6, 8, seed=31), parameters(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(OPERATORS.add_layer_norm, (x, residual, weight, bias, EPS))
        torch.library.opcheck(OPERATORS.add_layer_norm, (x, residual, None, None, EPS))
        normed, summed, *rows = OPERATORS.add_layer_norm(x.detach(), residual.detach(), None, None, EPS)
        frozen = weight.detach(), bias.detach()
        for by_summed, (factor, shift) in ((summed, frozen), (None, (None, None))):
            torch.library.opcheck(OPERATORS.add_layer_norm_backward, (normed, by_summed, summed, factor, shift, *rows))


def test_second_derivatives_are_refused() -> None:
    inputs = [drawn(4, 8, seed=33), drawn(4, 8, seed=34), *parameters(8)]
    gradient = torch.autograd.grad(ours(*inputs)[0].sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), inputs[0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        kernels.add_layer_norm(drawn(4, 8, seed=36), drawn(8, seed=37))
    with pytest.raises(ValueError, match="a weight"):
        kernels.add_layer_norm(drawn(4, 8, seed=38), drawn(4, 8, seed=39), drawn(4, seed=40))
    with pytest.raises(ValueError, match="a bias"):
        kernels.add_layer_norm(drawn(4, 8, seed=38), drawn(4, 8, seed=39), None, drawn(4, seed=40))
    with pytest.raises(ValueError, match="at least one element"):
        kernels.add_layer_norm(drawn(4, 0, seed=41), drawn(4, 0, seed=42))
