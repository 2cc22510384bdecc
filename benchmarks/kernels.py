"""Each fused kernel beside eager code, torch's own fused operator, torch.compile and Liger-Kernel where they exist.

    python benchmarks/kernels.py                      # all kernels, a table in Markdown
    python benchmarks/kernels.py swiglu add-rms-norm

Needs a CUDA or ROCm device and runs nothing without one. Forward and backward together, timed with the device's events:
warmed up, the cache between memory and the device's cores overwritten before each turn, the median of many turns. GB/s
counts each input read once and each output written once, whatever is moved in fact; TFLOP/s counts the products that
eager code needs. Peak memory is what a turn allocates beyond its inputs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diagnose import kernels

TURNS = 30
WARM_UP = 5
FLUSHED_BYTES = 256 << 20
"""More than any device's cache holds."""


@dataclass(frozen=True)
class Case:
    """One kernel at one size: inputs that gradients are wanted for, and the ways to compute it."""

    name: str
    inputs: tuple[Tensor, ...]
    ways: dict[str, Callable[..., Any]]
    moved_bytes: int = 0
    operations: int = 0


def main() -> int:
    """Print the table; 0 also where there is nothing to measure with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", choices=[*CASES, []], help="default: all")
    asked = parser.parse_args().kernels or list(CASES)
    if not torch.cuda.is_available():
        print("no CUDA or ROCm device: nothing measured", file=sys.stderr)
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {kernels.backend('cuda')} kernels, bfloat16")
    print(f"copy bandwidth measured: {copy_gb_per_s():,.0f} GB/s\n")
    print("| kernel | way | ms | achieved | peak MiB |\n|---|---|--:|--:|--:|")
    for name in asked:
        for case in CASES[name]():
            for way, call in case.ways.items():
                print(row(case, way, call), flush=True)
            torch.cuda.empty_cache()
    return 0


def row(case: Case, way: str, call: Callable[..., Any]) -> str:
    """A line of the table; what cannot run says so and stops nothing else."""
    torch.compiler.reset()
    try:
        spent_ms, peak_bytes = timed(call, case.inputs)
    except Exception as problem:  # noqa: BLE001 a way that fails, compiled ones above all, is a result too
        return f"| {case.name} | {way} | {type(problem).__name__} | | |"
    if case.operations:
        achieved = f"{case.operations / spent_ms / 1e9:,.0f} TFLOP/s"
    else:
        achieved = f"{case.moved_bytes / spent_ms / 1e6:,.0f} GB/s"
    return f"| {case.name} | {way} | {spent_ms:.3f} | {achieved} | {peak_bytes / 2**20:,.0f} |"


def timed(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> tuple[float, int]:
    """Median milliseconds of forward and backward, and the most bytes held beyond the inputs."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    found = call(*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    cotangents = [torch.ones_like(output) for output in outputs]
    del found, outputs

    def turn() -> None:
        given = call(*inputs)
        torch.autograd.grad(given if isinstance(given, tuple) else (given,), wanted, cotangents)

    for _ in range(WARM_UP):
        turn()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    turn()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    spent = []
    for _ in range(TURNS):
        flushed.zero_()
        begin, end = mark(), mark()
        begin.record()
        turn()
        end.record()
        torch.cuda.synchronize()
        spent.append(begin.elapsed_time(end))
    return median(spent), peak


def mark() -> Any:
    """An event of the device that knows when it happened."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's


def copy_gb_per_s() -> float:
    """What a copy within the device reaches, reads and writes counted."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    spent = []
    for _ in range(TURNS):
        begin, end = mark(), mark()
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        spent.append(begin.elapsed_time(end))
    return float(2 * source.numel() / median(spent) / 1e6)


def values(*shape: int, scale: float = 1.0) -> Tensor:
    """Fresh bfloat16 numbers on the device, with a gradient."""
    return (torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale).requires_grad_()


def linear_cross_entropy() -> Iterator[Case]:
    """The head and the loss of language models; the ways to the gradients by themselves."""
    for rows, width, classes in ((8192, 768, 50304), (8192, 4096, 128256)):
        hidden, weight = values(rows, width), values(classes, width, scale=width**-0.5)
        target = torch.randint(0, classes, (rows,), device="cuda")

        def eager(h: Tensor, w: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(F.linear(h, w), target)

        def widened(h: Tensor, w: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(F.linear(h, w).float(), target)

        ways: dict[str, Callable[..., Any]] = {
            "ours": partial(_call_with_target, kernels.linear_cross_entropy, target),
            "ours, recomputing": partial(
                _call_with_target, partial(kernels.linear_cross_entropy, recompute=True), target
            ),
            "eager": eager,
            "eager, float32 logits": widened,
            "torch.compile": torch.compile(eager),
        }
        native, options = getattr(F, "linear_cross_entropy", None), getattr(torch.nn, "LinearCrossEntropyOptions", None)
        if native is not None and options is not None:
            ways["torch, chunked"] = partial(_call_with_target, partial(native, options=options()), target)
        if (theirs := liger("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")) is not None:
            ways["Liger"] = lambda h, w, target=target, theirs=theirs: theirs.apply(h, w, target)[0]
        yield Case(
            f"linear cross entropy {rows}×{width}×{classes}",
            (hidden, weight),
            ways,
            operations=6 * rows * width * classes,
        )


def cross_entropy() -> Iterator[Case]:
    """Losses of logits that are there already."""
    for rows, classes in ((8192, 50257), (8192, 128256)):
        logits = values(rows, classes)
        target = torch.randint(0, classes, (rows,), device="cuda")

        def eager(x: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(x, target)

        def widened(x: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(x.float(), target)

        ways: dict[str, Callable[..., Any]] = {
            "ours": lambda x, target=target: kernels.cross_entropy(x, target),
            "eager": eager,
            "eager, float32 logits": widened,
            "torch.compile": torch.compile(widened),
        }
        if (theirs := liger("cross_entropy", "LigerCrossEntropyFunction")) is not None:
            # It writes the gradient over its logits: what is not a leaf is given to it, as in a model.
            ways["Liger, on a copy"] = lambda x, target=target, theirs=theirs: theirs.apply(x * 1, target, None)[0]
        yield Case(f"cross entropy {rows}×{classes}", (logits,), ways, moved_bytes=3 * logits.nbytes)


def add_rms_norm() -> Iterator[Case]:
    """The blocks of transformers, both outputs used."""
    for rows, width in ((8192, 1024), (8192, 4096), (8192, 8192)):
        inputs = values(rows, width), values(rows, width), values(width)

        def eager(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            summed = x + residual
            wide = summed.float()
            scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return weight * scaled.to(x.dtype), summed

        def native(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            summed = x + residual
            return F.rms_norm(summed, summed.shape[-1:], weight, 1e-6), summed

        ways: dict[str, Callable[..., Any]] = {
            "ours": kernels.add_rms_norm,
            "eager": eager,
            "torch's rms_norm": native,
            "torch.compile": torch.compile(eager),
        }
        if (theirs := liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")) is not None:
            ways["Liger"] = lambda x, residual, weight, theirs=theirs: theirs.apply(
                x, residual, weight, 1e-6, 0.0, "llama", False
            )
        # Forward two in and two out; backward two gradients and the sum in, one gradient out.
        yield Case(f"add + RMSNorm {rows}×{width}", inputs, ways, moved_bytes=8 * inputs[0].nbytes)


def swiglu() -> Iterator[Case]:
    """The activation of gated feed-forward blocks."""
    for rows, width in ((8192, 4096), (8192, 14336)):
        inputs = values(rows, width), values(rows, width)

        def eager(gate: Tensor, up: Tensor) -> Tensor:
            return F.silu(gate) * up

        ways: dict[str, Callable[..., Any]] = {
            "ours": kernels.swiglu,
            "eager": eager,
            "torch.compile": torch.compile(eager),
        }
        if (theirs := liger("swiglu", "LigerSiLUMulFunction")) is not None:
            ways["Liger"] = theirs.apply
        yield Case(f"SwiGLU {rows}×{width}", inputs, ways, moved_bytes=8 * inputs[0].nbytes)


def liger(module: str, function: str) -> Any | None:
    """An autograd function of Liger-Kernel, where it is installed."""
    try:
        return getattr(__import__(f"liger_kernel.ops.{module}", fromlist=[function]), function, None)
    except ImportError:
        return None


def _call_with_target(call: Callable[..., Any], target: Tensor, hidden: Tensor, weight: Tensor) -> Any:
    return call(hidden, weight, target)


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "linear-cross-entropy": linear_cross_entropy,
    "cross-entropy": cross_entropy,
    "add-rms-norm": add_rms_norm,
    "swiglu": swiglu,
}

if __name__ == "__main__":
    sys.exit(main())
