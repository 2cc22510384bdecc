"""Cross entropy of logits: torch's values and gradients, with less read and written on the way."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from kernel_checks import DEVICE, check, close, drawn, implementation, labels, poisoned
from torch.nn import functional

from diagnose import kernels
from diagnose.kernels.launch.tuning import Config

__all__ = ["implementation", "poisoned"]
# Poisoned memory comes with deterministic algorithms, and devices do not have all of them.
pytestmark = [
    pytest.mark.usefixtures("implementation"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]

OPERATORS = torch.ops.diagnose


def reference(logits: torch.Tensor, target: torch.Tensor, *, z_loss: float = 0.0, **options: Any) -> torch.Tensor:
    """torch's loss, and z-loss as its definition has it, for the reductions mean and sum."""
    rows, classes = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    loss = functional.cross_entropy(rows, classes, **options)
    kept = classes != options.get("ignore_index", -100)
    squares = torch.where(kept, rows.logsumexp(1).square(), 0.0)
    if options.get("reduction") == "none":
        return (loss + z_loss * squares).reshape(target.shape)
    return loss + z_loss * (squares.sum() if options.get("reduction") == "sum" else squares.sum() / kept.sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("classes", [1, 131, 4099])
def test_it_is_torchs_loss(dtype: torch.dtype, reduction: str, classes: int) -> None:
    target = labels(11, classes, seed=1, ignored=(0, 7))
    options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 1e-2, "reduction": reduction}
    check(
        lambda x: kernels.cross_entropy(x, target, **options),
        lambda x: reference(x, target, **options),
        [drawn(11, classes, seed=2, dtype=dtype, scale=3.0)],
        backward_twice=True,
    )


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"z_loss": 1e-2}, {"label_smoothing": 1.0}])
def test_each_term_by_itself(options: dict[str, Any]) -> None:
    target = labels(9, 37, seed=3)
    check(
        lambda x: kernels.cross_entropy(x, target, **options),
        lambda x: reference(x, target, **options),
        [drawn(9, 37, seed=4)],
    )


def test_logits_in_float32_give_torchs_loss_to_rounding_and_halves_a_better_one() -> None:
    """The loss of bfloat16 logits is summed and returned in float32; torch rounds it to three digits."""
    target = labels(50, 300, seed=5)
    logits = drawn(50, 300, seed=6, dtype=torch.bfloat16)
    loss = kernels.cross_entropy(logits, target)
    assert loss.dtype == torch.float32
    close(loss.detach(), functional.cross_entropy(logits.detach().double(), target), 1e-6)


def test_any_layout_and_rank() -> None:
    """Strided rows are read as they lie, strided classes after a copy."""
    target = labels(15, 21, seed=7).reshape(3, 5).t()
    for logits in (
        drawn(5, 3, 40, seed=8).detach()[..., 3:24],
        drawn(21, 3, 5, seed=9).detach().permute(2, 1, 0),
        drawn(3, 21, seed=10).detach().expand(5, 3, 21),
    ):
        for reduction in ("mean", "none"):
            check(
                lambda x, how=reduction: kernels.cross_entropy(x, target, reduction=how),
                lambda x, how=reduction: reference(x, target, reduction=how),
                [logits.requires_grad_()],
            )


def test_large_logits_do_not_overflow_and_infinite_ones_take_classes_out() -> None:
    target = labels(6, 4, seed=11)
    logits = drawn(6, 5000, seed=12, dtype=torch.float32, scale=1e4).detach()
    logits[:, 4:4600] = float("-inf")
    check(lambda x: kernels.cross_entropy(x, target), lambda x: reference(x, target), [logits.requires_grad_()], 1e-5)


def test_ignored_rows_may_hold_anything() -> None:
    target = labels(4, 9, seed=13, ignored=(1,))
    logits = drawn(4, 9, seed=14).detach()
    logits[1] = float("nan")
    logits.requires_grad_()
    loss = kernels.cross_entropy(logits, target)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and gradient.isfinite().all()
    assert torch.equal(gradient[1], torch.zeros_like(gradient[1]))


def test_all_rows_ignored_and_no_rows() -> None:
    for rows in (0, 5):
        target = labels(rows, 7, seed=15, ignored=range(rows))
        for reduction, value in (("mean", float("nan")), ("sum", 0.0)):
            logits = drawn(rows, 7, seed=16)
            loss = kernels.cross_entropy(logits, target, reduction=reduction)  # type: ignore[arg-type]
            close(loss.detach(), torch.tensor(value, dtype=torch.float64, device=DEVICE), 0.0)
            (gradient,) = torch.autograd.grad(loss, logits)
            assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_label_outside_the_vocabulary_shows() -> None:
    target = labels(4, 9, seed=17)
    target[0], target[3] = 9, -1
    logits = drawn(4, 9, seed=18)
    losses = kernels.cross_entropy(logits, target, reduction="none")
    assert losses.isnan().tolist() == [True, False, False, True]
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient.isnan().any(1).tolist() == [True, False, False, True]


def test_offsets_beyond_two_to_the_31() -> None:
    """The third row begins 2³¹ elements after the first: the product of two 32-bit numbers would be negative.

    Of the 8 GiB that the rows span, only the pages that they touch are ever used.
    """
    stride = 1 << 30
    storage = torch.empty(0, dtype=torch.bfloat16, device=DEVICE)
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        storage = torch.empty(2 * stride + 64, dtype=torch.bfloat16, device=DEVICE)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
    logits = storage.as_strided((3, 64), (stride, 1))
    values = drawn(3, 64, seed=19, dtype=torch.bfloat16).detach()
    logits.copy_(values)
    target = labels(3, 64, seed=20)
    check(lambda x: kernels.cross_entropy(x, target), lambda x: reference(x, target), [logits.requires_grad_()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [63, 64, 65, 127, 128, 191, 250])
def test_rows_that_begin_anywhere(dtype: torch.dtype, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd rows are read in whole blocks from the 16 bytes on that they begin in, wherever they begin and end."""
    if kernels.backend(DEVICE) == "triton":
        from diagnose.kernels.gpu import row_loss

        monkeypatch.setattr(row_loss, "LOSS_CANDIDATES", (Config(block=64, threads=128),))
        monkeypatch.setattr(row_loss, "GRADIENT_CANDIDATES", (Config(block=64, threads=128),))
    target = labels(18, classes, seed=41, ignored=(4, 17))
    wide = drawn(18, classes + 9, seed=42, dtype=dtype).detach()
    for logits in (wide[:, :classes], wide[:, 9:].contiguous(), wide[:, 9:]):
        check(
            lambda x: kernels.cross_entropy(x, target, label_smoothing=0.1),
            lambda x: reference(x, target, label_smoothing=0.1),
            [logits.requires_grad_()],
        )


def test_under_autocast_the_loss_is_of_what_it_is_given() -> None:
    target = labels(6, 9, seed=21)

    def autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return kernels.cross_entropy(x, target)

    check(autocast, lambda x: reference(x, target), [drawn(6, 9, seed=22, dtype=torch.float32)])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_in_one_compiled_graph(reduction: Any) -> None:
    target = labels(10, 21, seed=23)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return kernels.cross_entropy(x * 2.0, target, reduction=reduction)

    check(compiled, lambda x: reference(x * 2.0, target, reduction=reduction), [drawn(10, 21, seed=24)])


def test_the_operators_keep_their_promises() -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    logits, target, terms = drawn(6, 9, seed=25), labels(6, 9, seed=26, ignored=(1,)), (-100, 0.1, 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(OPERATORS.cross_entropy, (logits, target, *terms))
        losses, logsumexps = OPERATORS.cross_entropy(logits.detach(), target, *terms)
        torch.library.opcheck(
            OPERATORS.cross_entropy_backward, (losses, logits.detach().t().clone().t(), target, logsumexps, *terms)
        )


def test_second_derivatives_are_refused() -> None:
    logits, target = drawn(4, 7, seed=27), labels(4, 7, seed=28)
    gradient = torch.autograd.grad(kernels.cross_entropy(logits, target), logits, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), logits)


def test_what_would_mean_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="class indices"):
        kernels.cross_entropy(drawn(4, 7, seed=29), drawn(4, 7, seed=30))
    with pytest.raises(ValueError, match="a target for each row"):
        kernels.cross_entropy(drawn(4, 7, 2, seed=31), labels(8, 7, seed=32).reshape(4, 2))
