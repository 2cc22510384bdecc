"""What only a device can show of the kernels: real sizes, memory, graphs, and that nothing waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from diagnose import kernels

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="needs a device"
)

ROWS, WIDTH, CLASSES = 512, 256, 5003


def numbers(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Fresh ones on the device, with a gradient."""
    return (torch.randn(shape, device="cuda") * scale).to(dtype).requires_grad_()


def classes(rows: int, count: int) -> torch.Tensor:
    return torch.randint(0, count, (rows,), device="cuda")


def _linear_cross_entropy() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    target = classes(ROWS, CLASSES)
    return (
        lambda h, w: kernels.linear_cross_entropy(h, w, target, chunk_rows=128),
        lambda h, w: functional.cross_entropy(functional.linear(h, w), target),
        [numbers(ROWS, WIDTH), numbers(CLASSES, WIDTH, scale=WIDTH**-0.5)],
    )


def _cross_entropy() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    target = classes(ROWS, CLASSES)
    return (
        lambda x: kernels.cross_entropy(x, target),
        lambda x: functional.cross_entropy(x, target),
        [numbers(ROWS, CLASSES)],
    )


def _add_rms_norm() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    def reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        summed = x + residual
        return functional.rms_norm(summed, (WIDTH,), weight, 1e-6), summed

    return kernels.add_rms_norm, reference, [numbers(ROWS, WIDTH), numbers(ROWS, WIDTH), numbers(WIDTH)]


def _swiglu() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    return kernels.swiglu, lambda gate, up: functional.silu(gate) * up, [numbers(ROWS, WIDTH), numbers(ROWS, WIDTH)]


def _add_layer_norm() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    def reference(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        summed = x + residual
        return functional.layer_norm(summed, (WIDTH,), weight, bias), summed

    return (
        kernels.add_layer_norm,
        reference,
        [numbers(ROWS, WIDTH), numbers(ROWS, WIDTH), numbers(WIDTH), numbers(WIDTH)],
    )


def _geglu() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    return kernels.geglu, lambda gate, up: functional.gelu(gate) * up, [numbers(ROWS, WIDTH), numbers(ROWS, WIDTH)]


def _rotary() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    angles = torch.randn(ROWS, 32, device="cuda").repeat(1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return (
        lambda q, k: kernels.rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin),
        lambda q, k: (turned(q.transpose(1, 2)), turned(k.transpose(1, 2))),
        [numbers(2, ROWS, 6, 64), numbers(2, ROWS, 2, 64)],
    )


def _softmax() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    mask = torch.ones(ROWS, ROWS, dtype=torch.bool, device="cuda").tril()
    return (
        lambda x: kernels.softmax(x, mask, 0.5, causal=True),
        lambda x: torch.softmax((x * 0.5).masked_fill(~mask, float("-inf")), -1),
        [numbers(3, ROWS, ROWS)],
    )


EACH = pytest.mark.parametrize(
    "make",
    [
        _linear_cross_entropy,
        _cross_entropy,
        _add_rms_norm,
        _add_layer_norm,
        _swiglu,
        _geglu,
        _rotary,
        _softmax,
    ],
)


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operators themselves, as they are launched by default."""
    monkeypatch.setenv("DIAGNOSE_TUNING", "off")
    torch.manual_seed(0)
    yield
    torch.cuda.empty_cache()


def gradients(call: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Values and gradients of the sum of everything."""
    found = call(*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    by_inputs = torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])
    return [*(output.detach() for output in outputs), *by_inputs]


@EACH
def test_nothing_waits_for_the_device(make: Callable[[], Any]) -> None:
    ours, _, inputs = make()
    gradients(ours, inputs)  # compiles
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(ours, inputs)
    finally:
        torch.cuda.set_sync_debug_mode(before)


@EACH
def test_errors_are_at_most_three_times_those_of_what_is_replaced(make: Callable[[], Any]) -> None:
    """Against float64, as a fix's gate asks: of the root mean square, with an allowance for what is almost nothing."""
    ours, replaced, inputs = make()
    exact = gradients(replaced, [tensor.detach().double().requires_grad_() for tensor in inputs])
    for place, (found, eager, true) in enumerate(
        zip(gradients(ours, inputs), gradients(replaced, inputs), exact, strict=True)
    ):
        error, allowed = ((one.double() - true).square().mean().sqrt() for one in (found, eager))
        assert error <= 3.0 * allowed + 1e-4 * true.square().mean().sqrt(), f"result {place}"


@EACH
def test_in_a_captured_graph(make: Callable[[], Any]) -> None:
    ours, _, inputs = make()
    expected = gradients(ours, inputs)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients(ours, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(ours, inputs)
    for tensor in found:
        tensor.fill_(float("nan"))
    graph.replay()
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-2, atol=1e-3)


@EACH
def test_compiled_by_inductor(make: Callable[[], Any]) -> None:
    ours, _, inputs = make()
    torch.compiler.reset()  # each case is a compilation of the same function: their number would count
    compiled = torch.compile(lambda *given: ours(*(one * 1.0 for one in given)), fullgraph=True)
    for one, other in zip(gradients(compiled, inputs), gradients(ours, inputs), strict=True):
        assert torch.allclose(one, other, rtol=2e-2, atol=2e-3)


def test_softmax_of_more_than_two_to_the_31_scores() -> None:
    """The last rows lie beyond 2³¹ elements; they are held against the same rows by themselves."""
    rows, columns = 17_000, 131_071
    assert rows * columns > 2**31
    scores = numbers(rows, columns)
    shares = kernels.softmax(scores, scale=0.5)
    last = scores.detach()[-3:].float().requires_grad_()
    exact = torch.softmax(last * 0.5, -1)
    assert torch.allclose(shares[-3:].float(), exact, rtol=2e-2, atol=1e-7)
    weights = torch.arange(columns, device="cuda") / columns
    (by_scores,) = torch.autograd.grad(shares, scores, weights.bfloat16().expand(rows, columns).contiguous())
    (exactly,) = torch.autograd.grad(exact, last, weights.bfloat16().float().expand(3, columns))
    assert torch.allclose(by_scores[-3:].float(), exactly, rtol=5e-2, atol=1e-7)


def test_cross_entropy_of_more_than_two_to_the_31_logits() -> None:
    """The last rows lie beyond 2³¹ elements; they are held against the same rows by themselves."""
    rows, count = 17_000, 131_071
    assert rows * count > 2**31
    logits, target = numbers(rows, count), classes(rows, count)
    losses = kernels.cross_entropy(logits, target, reduction="none")
    (by_logits,) = torch.autograd.grad(losses.sum(), logits)
    last = logits.detach()[-3:].float().requires_grad_()
    exact = functional.cross_entropy(last, target[-3:], reduction="none")
    (exactly,) = torch.autograd.grad(exact.sum(), last)
    assert torch.allclose(losses[-3:], exact, rtol=1e-4)
    assert torch.allclose(by_logits[-3:].float(), exactly, rtol=2e-2, atol=1e-6)


def test_linear_cross_entropy_of_more_than_two_to_the_31_logits() -> None:
    rows, width, count = 17_000, 64, 131_072
    hidden, weight, target = numbers(rows, width), numbers(count, width, scale=width**-0.5), classes(rows, count)
    loss = kernels.linear_cross_entropy(hidden, weight, target, reduction="sum")
    (by_hidden,) = torch.autograd.grad(loss, hidden)
    last = hidden.detach()[-3:].float().requires_grad_()
    exact = functional.cross_entropy(functional.linear(last, weight.detach().float()), target[-3:], reduction="sum")
    (exactly,) = torch.autograd.grad(exact, last)
    assert torch.allclose(by_hidden[-3:].float(), exactly, rtol=5e-2, atol=5e-3)


def test_a_head_and_its_loss_take_a_sixth_of_the_memory() -> None:
    """Of what logits in float32 take, gradients included; and as little more than the gradients as one chunk."""
    rows, width, count = 8192, 1024, 50304
    hidden, weight, target = numbers(rows, width), numbers(count, width, scale=width**-0.5), classes(rows, count)

    def peak(call: Callable[[], torch.Tensor]) -> int:
        hidden.grad = weight.grad = None
        torch.autograd.backward(call())  # warms up
        hidden.grad = weight.grad = None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.backward(call())
        return torch.cuda.max_memory_allocated() - before

    eager = peak(lambda: functional.cross_entropy(functional.linear(hidden, weight).float(), target))
    ours = peak(lambda: kernels.linear_cross_entropy(hidden, weight, target))
    assert ours < 0.15 * eager
    assert ours < hidden.nbytes + weight.nbytes + (rows // 4) * count * 2 + (64 << 20)
