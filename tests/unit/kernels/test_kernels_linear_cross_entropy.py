"""Linear layer and cross entropy in one operator: the same loss and gradients as both one after the other."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from kernel_checks import DEVICE, check, close, drawn, implementation, labels, poisoned
from torch.nn import functional

from diagnose import kernels
from diagnose.kernels.losses import gradient_reuse, linear_loss

__all__ = ["implementation", "poisoned"]
# Poisoned memory comes with deterministic algorithms, and devices do not have all of them.
pytestmark = [
    pytest.mark.usefixtures("implementation"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]

OPERATORS = torch.ops.diagnose


def reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    z_loss: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The two calls of torch that are replaced, and z-loss as its definition has it."""
    logits = functional.linear(hidden, weight, bias).flatten(0, -2)
    losses = functional.cross_entropy(
        logits, target.flatten(), ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing
    )
    kept = target.flatten() != ignore_index
    losses = losses + z_loss * torch.where(kept, logits.logsumexp(1).square(), 0.0)
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_it_is_the_linear_layer_and_the_loss(dtype: torch.dtype, recompute: bool, reduction: str) -> None:
    hidden = drawn(37, 24, seed=1, dtype=dtype)
    weight = drawn(131, 24, seed=2, dtype=dtype, scale=0.3)
    bias = drawn(131, seed=3, dtype=dtype)
    target = labels(37, 131, seed=4, ignored=(0, 7, 36))
    options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 1e-2, "reduction": reduction}
    check(
        lambda h, w, b: kernels.linear_cross_entropy(h, w, target, b, recompute=recompute, chunk_rows=16, **options),
        lambda h, w, b: reference(h, w, target, b, **options),
        (hidden, weight, bias),
        backward_twice=True,
    )


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"z_loss": 1e-2}, {"label_smoothing": 1.0}])
@pytest.mark.parametrize(("rows", "width", "classes"), [(1, 1, 2), (1, 7, 1), (129, 3, 5), (5, 33, 4099)])
def test_odd_sizes(options: dict[str, Any], rows: int, width: int, classes: int) -> None:
    hidden, weight = drawn(rows, width, seed=5), drawn(classes, width, seed=6)
    target = labels(rows, classes, seed=7)
    for recompute in (False, True):
        check(
            lambda h, w, again=recompute: kernels.linear_cross_entropy(h, w, target, recompute=again, **options),
            lambda h, w: reference(h, w, target, **options),
            (hidden, weight),
        )


@pytest.mark.parametrize(("classes", "parts"), [(171, 2), (176, 1), (128, 1), (43, 1)])
def test_a_vocabulary_whose_rest_is_multiplied_by_itself(classes: int, parts: int) -> None:
    assert len(linear_loss._aligned_parts(classes)) == parts
    hidden, weight, bias = drawn(13, 8, seed=5), drawn(classes, 8, seed=6), drawn(classes, seed=7)
    target = labels(13, classes, seed=8, ignored=(4,))
    check(
        lambda h, w, b: kernels.linear_cross_entropy(h, w, target, b, chunk_rows=5),
        lambda h, w, b: reference(h, w, target, b),
        (hidden, weight, bias),
    )


def test_the_vocabulary_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The label of a row lies in one block only, the last block is a rest."""
    monkeypatch.setattr(linear_loss, "_columns_at_once", lambda _: 50)
    hidden, weight, bias = drawn(13, 8, seed=8), drawn(171, 8, seed=9), drawn(171, seed=10)
    target = labels(13, 171, seed=11, ignored=(4,))
    check(
        lambda h, w, b: kernels.linear_cross_entropy(h, w, target, b, label_smoothing=0.1, recompute=True),
        lambda h, w, b: reference(h, w, target, b, label_smoothing=0.1),
        (hidden, weight, bias),
    )


def test_inputs_of_any_layout_and_rank() -> None:
    hidden = drawn(24, 5, 7, seed=12).detach().permute(1, 2, 0).requires_grad_()
    weight = drawn(24, 51, seed=13).detach().t().requires_grad_()
    target = labels(35, 51, seed=14).reshape(7, 5).t()
    assert not hidden.is_contiguous() and not weight.is_contiguous() and not target.is_contiguous()
    for reduction in ("mean", "none"):
        check(
            lambda h, w, how=reduction: kernels.linear_cross_entropy(h, w, target, reduction=how),
            lambda h, w, how=reduction: reference(h, w, target, reduction=how),
            (hidden, weight),
        )


@pytest.mark.parametrize("recompute", [False, True])
def test_all_rows_ignored(recompute: bool) -> None:
    """As torch's: the mean of nothing is nan, the sum zero; the gradients are zeros in either case."""
    target = labels(6, 11, seed=15, ignored=range(6))
    for reduction, value in (("mean", float("nan")), ("sum", 0.0)):
        hidden, weight = drawn(6, 4, seed=16), drawn(11, 4, seed=17)
        loss = kernels.linear_cross_entropy(hidden, weight, target, reduction=reduction, recompute=recompute)  # type: ignore[arg-type]
        close(loss.detach(), torch.tensor(value, dtype=torch.float64, device=DEVICE), 0.0)
        for gradient in torch.autograd.grad(loss, (hidden, weight)):
            assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("recompute", [False, True])
def test_no_rows(recompute: bool) -> None:
    target = labels(0, 11, seed=18)
    hidden, weight, bias = drawn(0, 4, seed=19), drawn(11, 4, seed=20), drawn(11, seed=21)
    loss = kernels.linear_cross_entropy(hidden, weight, target, bias, reduction="sum", recompute=recompute)
    assert float(loss.detach()) == 0.0
    gradients = torch.autograd.grad(loss, (hidden, weight, bias))
    assert [gradient.shape for gradient in gradients] == [(0, 4), (11, 4), (11,)]
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
    assert kernels.linear_cross_entropy(hidden, weight, target).isnan()
    assert kernels.linear_cross_entropy(hidden, weight, target, reduction="none").shape == (0,)


def test_a_class_can_be_the_ignored_one() -> None:
    target = labels(20, 5, seed=22)
    check(
        lambda h, w: kernels.linear_cross_entropy(h, w, target, ignore_index=3),
        lambda h, w: reference(h, w, target, ignore_index=3),
        (drawn(20, 4, seed=23), drawn(5, 4, seed=24)),
    )


def test_masked_classes() -> None:
    """A bias of -inf takes classes out: whole blocks of them, the first ones included."""
    bias = drawn(5000, seed=25).detach()
    bias[:4200] = float("-inf")
    bias[4999] = float("-inf")
    target = 4200 + labels(9, 799, seed=26)
    for recompute in (False, True):
        check(
            lambda h, w, again=recompute: kernels.linear_cross_entropy(h, w, target, bias, recompute=again),
            lambda h, w: reference(h, w, target, bias),
            (drawn(9, 4, seed=27), drawn(5000, 4, seed=28)),
        )


@pytest.mark.parametrize("recompute", [False, True])
def test_a_label_outside_the_vocabulary_shows(recompute: bool) -> None:
    """No error can be raised without waiting for the device; no memory outside is read, and the loss is nan."""
    hidden, weight, target = drawn(4, 4, seed=29), drawn(7, 4, seed=30), labels(4, 7, seed=31)
    target[2] = 7
    losses = kernels.linear_cross_entropy(hidden, weight, target, reduction="none")
    assert losses.isnan().tolist() == [False, False, True, False]
    loss = kernels.linear_cross_entropy(hidden, weight, target, reduction="sum", recompute=recompute)
    by_hidden, _ = torch.autograd.grad(loss, (hidden, weight))
    assert by_hidden.isnan().any(1).tolist() == [False, False, True, False]


def test_only_the_gradients_that_are_wanted() -> None:
    """A frozen head costs no product for its weight."""
    target = labels(12, 9, seed=32)
    for recompute in (False, True):
        for frozen in (0, 1, 2):
            inputs = [drawn(12, 4, seed=33), drawn(9, 4, seed=34), drawn(9, seed=35)]
            inputs[frozen].requires_grad_(False)
            check(
                lambda h, w, b, again=recompute: kernels.linear_cross_entropy(h, w, target, b, recompute=again),
                lambda h, w, b: reference(h, w, target, b),
                inputs,
            )
    with torch.no_grad():
        assert not kernels.linear_cross_entropy(inputs[0], inputs[1], target).requires_grad


@pytest.mark.parametrize("recompute", [False, True])
def test_under_autocast_products_are_of_halves_and_sums_are_not(recompute: bool) -> None:
    hidden = drawn(16, 8, seed=36, dtype=torch.float32)
    weight = drawn(33, 8, seed=37, dtype=torch.float32)
    target = labels(16, 33, seed=38)

    def autocast(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = kernels.linear_cross_entropy(h, w, target, recompute=recompute)
        assert loss.dtype == torch.float32
        return loss

    check(autocast, lambda h, w: reference(h, w, target), (hidden, weight), tolerance=2e-2)


def test_float16_gradients_survive_a_mean_over_many_rows() -> None:
    """A loss that is scaled up afterwards must not have lost its gradients to float16's range before."""
    rows = 500
    hidden = drawn(rows, 8, seed=39, dtype=torch.float16, scale=0.1)
    weight = drawn(300, 8, seed=40, dtype=torch.float16, scale=0.1)
    target = labels(rows, 300, seed=41)
    check(
        lambda h, w: kernels.linear_cross_entropy(h, w, target) * 65536.0,
        lambda h, w: reference(h, w, target) * 65536.0,
        (hidden, weight),
    )


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"reduction": "none"}])
def test_in_one_compiled_graph(options: dict[str, Any]) -> None:
    target = labels(10, 21, seed=42)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return kernels.linear_cross_entropy(h * 2.0, w, target, b, **options)

    how = {name: value for name, value in options.items() if name == "reduction"}
    check(
        compiled,
        lambda h, w, b: reference(h * 2.0, w, target, b, **how),
        (drawn(10, 4, seed=43), drawn(21, 4, seed=44), drawn(21, seed=45)),
    )


def test_compiled_under_autocast() -> None:
    target = labels(10, 21, seed=46)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return kernels.linear_cross_entropy(h, w, target)

    inputs = (drawn(10, 4, seed=47, dtype=torch.float32), drawn(21, 4, seed=48, dtype=torch.float32))
    check(compiled, lambda h, w: reference(h, w, target), inputs, tolerance=2e-2)


def test_the_operators_keep_their_promises() -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    hidden, weight, bias = drawn(6, 4, seed=49), drawn(9, 4, seed=50), drawn(9, seed=51)
    target, terms = labels(6, 9, seed=52, ignored=(1,)), (-100, 0.1, 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(
            OPERATORS.linear_cross_entropy_with_gradients,
            (hidden, weight, bias, target, *terms, True, 4, True, True, True),
        )
        torch.library.opcheck(
            OPERATORS.linear_cross_entropy_with_gradients,
            (hidden, weight, None, target, *terms, False, None, True, False, False),
        )
        torch.library.opcheck(OPERATORS.linear_cross_entropy, (hidden, weight, bias, target, *terms, 4))
        torch.library.opcheck(OPERATORS.linear_cross_entropy, (hidden, weight, None, target, *terms, None))
        losses, logsumexps = OPERATORS.linear_cross_entropy(hidden, weight, bias, target, *terms, 4)
        plain = [one.detach() for one in (losses, hidden, weight, bias)]
        torch.library.opcheck(
            OPERATORS.linear_cross_entropy_backward, (*plain, target, logsumexps, *terms, True, False, True)
        )


@pytest.mark.parametrize("recompute", [False, True])
def test_second_derivatives_are_refused(recompute: bool) -> None:
    hidden, weight, target = drawn(4, 4, seed=53), drawn(7, 4, seed=54), labels(4, 7, seed=55)
    loss = kernels.linear_cross_entropy(hidden, weight, target, recompute=recompute)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(torch.autograd.grad(loss, hidden, create_graph=True)[0].sum(), hidden)


def test_gradients_of_many_cotangents_at_once() -> None:
    hidden, weight = drawn(7, 6, seed=1), drawn(11, 6, seed=2)
    loss = kernels.linear_cross_entropy(hidden, weight, labels(7, 11, seed=3))
    factors = torch.tensor([1.0, -0.5, 0.0], dtype=loss.dtype, device=loss.device)
    found = torch.autograd.grad(loss, (hidden, weight), factors, retain_graph=True, is_grads_batched=True)
    for gradients, one in zip(found, torch.autograd.grad(loss, (hidden, weight)), strict=True):
        torch.testing.assert_close(gradients, factors[:, None, None] * one)


def test_what_would_mean_something_else_is_refused() -> None:
    hidden, weight, target = drawn(4, 4, seed=56), drawn(7, 4, seed=57), labels(4, 7, seed=58)
    with pytest.raises(TypeError, match="class indices"):
        kernels.linear_cross_entropy(hidden, weight, target.double())
    with pytest.raises(ValueError, match="a target for each row"):
        kernels.linear_cross_entropy(hidden, weight, target[:3])
    with pytest.raises(ValueError, match="does not multiply"):
        kernels.linear_cross_entropy(hidden, weight[:, :3], target)
    with pytest.raises(ValueError, match="between 0 and 1"):
        kernels.linear_cross_entropy(hidden, weight, target, label_smoothing=1.5)
    with pytest.raises(ValueError, match="0 or more"):
        kernels.linear_cross_entropy(hidden, weight, target, z_loss=-1e-4)
    with pytest.raises(ValueError, match="mean, sum or none"):
        kernels.linear_cross_entropy(hidden, weight, target, reduction="batchmean")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one dtype"):
        kernels.linear_cross_entropy(hidden.float(), weight, target)


def test_chunks_fill_the_device_within_their_bytes() -> None:
    """Few chunks, none that starves the device, none much smaller than the others, no more logits than is allowed."""
    for rows, width, vocabulary, expected in (
        (8192, 4096, 128256, 1024),  # fills 132 processors: 8 chunks of 250 MiB beside a weight of 1 GiB
        (8192, 768, 50304, 2048),  # narrow: more rows fill the device, a quarter of all is the most
        (65536, 4096, 128256, 2048),  # an eighth of the rows would be 2 GiB: many chunks of 500 MiB
        (1100, 768, 50304, 640),
        (100, 768, 50304, 128),
    ):
        weight = torch.empty(vocabulary, width, dtype=torch.bfloat16, device="meta")
        assert linear_loss._rows_at_once(rows, weight) == expected
    weight = torch.empty(50304, 4096, dtype=torch.bfloat16, device="meta")
    for rows in (1, 127, 1000, 1025, 4097, 65536):
        parts = linear_loss._chunks(rows, linear_loss._rows_at_once(rows, weight))
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == rows


@pytest.mark.parametrize("chunks", [linear_loss.FEW_CHUNKS, 4 * linear_loss.FEW_CHUNKS])
def test_the_sum_over_chunks_costs_little_accuracy(chunks: int) -> None:
    """The error of the weight's gradient in bfloat16 stays within twice that of one product over all rows."""
    rows = 8 * chunks
    hidden, weight = (
        drawn(*shape, seed=59 + place, dtype=torch.bfloat16) for place, shape in enumerate(((rows, 16), (300, 16)))
    )
    target = labels(rows, 300, seed=61)
    exact = torch.autograd.grad(reference(hidden.double(), weight.double(), target), weight)[0].double()
    errors = []
    for size in (8, rows):
        loss = kernels.linear_cross_entropy(hidden, weight, target, chunk_rows=size)
        errors.append(float((torch.autograd.grad(loss, weight)[0].double() - exact).norm()))
    assert errors[0] <= 2.0 * errors[1]


def test_the_gradient_is_handed_on_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the forward pass left behind becomes `.grad` itself; where the graph is kept, it is copied."""
    hidden, weight, target = drawn(12, 4, seed=62), drawn(9, 4, seed=63), labels(12, 9, seed=64)
    left: list[int] = []
    made = gradient_reuse.scale_gradient

    def seen(gradient: torch.Tensor, factor: torch.Tensor, *, overwrite: bool) -> torch.Tensor:
        left.append(gradient.data_ptr())
        return made(gradient, factor, overwrite=overwrite)

    monkeypatch.setattr(linear_loss, "scale_gradient", seen)
    torch.autograd.backward(kernels.linear_cross_entropy(hidden, weight, target))
    assert weight.grad is not None and hidden.grad is not None
    assert [hidden.grad.data_ptr(), weight.grad.data_ptr()] == left
    loss = kernels.linear_cross_entropy(hidden, weight, target)
    kept = torch.autograd.grad(loss * 2.0, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(loss * 3.0, (hidden, weight))
    for first, second in zip(kept, again, strict=True):
        assert first.data_ptr() != second.data_ptr()
        close(second, first * 1.5, 1e-12)


def test_a_factor_of_the_loss_is_not_rounded_to_the_dtype_of_the_weight() -> None:
    """1 / 3, of accumulated batches, is 0.3339 in bfloat16: every gradient would be off by the same 0.2 %."""
    hidden, weight = drawn(64, 8, seed=65, dtype=torch.bfloat16), drawn(50, 8, seed=66, dtype=torch.bfloat16)
    target = labels(64, 50, seed=67)
    whole = torch.autograd.grad(kernels.linear_cross_entropy(hidden, weight, target), weight)[0].double()
    third = torch.autograd.grad(kernels.linear_cross_entropy(hidden, weight, target) / 3.0, weight)[0].double()
    bias = float((third * whole).sum() / (whole * whole).sum()) * 3.0 - 1.0
    if os.environ.get("TRITON_INTERPRET") != "1":  # The interpreter cuts bfloat16 off where devices round it.
        assert abs(bias) < 3e-4
