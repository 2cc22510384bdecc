"""Each fused kernel beside eager code, torch's own fused operator, torch.compile and Liger-Kernel where they exist.

    python benchmarks/kernels.py --out OUT                # all kernels: rows to OUT/table.json and OUT/table.md
    python benchmarks/kernels.py swiglu add-rms-norm --seconds 60
    python benchmarks/kernels.py --tiny                   # on the CPU, to see that it runs: its times mean nothing

Forward and backward together; how they are timed stands in kernel_timing.py. GB/s counts each input read once and each
output written once, whatever is moved in fact; TFLOP/s counts the products that eager code needs. Both are held against
what this device was measured to copy and to multiply. Peak memory is what a turn allocates beyond its inputs, its
gradients included. Compiled ways come last, for compiling takes longest; what there was no time for is said. Kernels
are tuned on the way, and what was chosen lies beside the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from kernel_case import DEVICE, Case, Ways, liger, sizes, values
from kernel_cases_of_blocks import add_layer_norm, geglu, rotary, softmax
from kernel_timing import Timed, copied_bytes_per_s, multiplied_per_s, timed
from torch import Tensor

from diagnose import kernels

COMPILE_S = 15
"""What compiling a way takes, about: with less time left, it is not begun."""

TINY = 40
"""The longest side of `--tiny`."""


@dataclass
class Table:
    """Rows as they come, and the two files that always hold them all."""

    folder: Path | None
    machine: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: Case, found: Timed) -> None:
        row: dict[str, Any] = {"case": case.name, "way": found.way, "problem": found.problem}
        if not found.problem:
            spent_ms, low_ms, high_ms = found.device_ms()
            amount, ceiling = (
                (case.operations, self.machine["operations_per_s"])
                if case.operations
                else (case.moved_bytes, self.machine["bytes_per_s"])
            )
            row |= {"device_ms": spent_ms, "low_ms": low_ms, "high_ms": high_ms, "alone_ms": found.alone_ms()}
            row |= {"per_s": amount / spent_ms * 1e3, "unit": "FLOP" if case.operations else "B"}
            row |= {"share": amount / spent_ms * 1e3 / ceiling, "peak_bytes": found.peak_bytes}
        self.rows.append(row)
        print(line(row), flush=True)
        if self.folder is not None:
            (self.folder / "table.json").write_text(json.dumps({"machine": self.machine, "rows": self.rows}, indent=1))
            (self.folder / "table.md").write_text("\n".join([title(self.machine), HEAD, *map(line, self.rows), ""]))

    def summary(self) -> Iterator[str]:
        """Ours of each case beside eager code and the fastest other."""
        for case in dict.fromkeys(row["case"] for row in self.rows):
            measured = [row for row in self.rows if row["case"] == case and not row["problem"]]
            ours = next((row for row in measured if row["way"] == "ours"), None)
            others = sorted((row for row in measured if "ours" not in row["way"]), key=lambda row: row["device_ms"])
            if ours is None or not others:
                continue
            parts = [f"{case}: {ours['device_ms']:.3f} ms, {ours['share']:.0%} of the ceiling"]
            for row in others:
                parts.append(f"{row['way']} ×{row['device_ms'] / ours['device_ms']:.2f}")
                if row["peak_bytes"] and ours["peak_bytes"]:
                    parts[-1] += f" (memory {ours['peak_bytes'] / row['peak_bytes']:.0%})"
            yield "; ".join(parts)


HEAD = """| kernel | way | device ms | 95 % | alone ms | achieved | of ceiling | peak MiB |
|---|---|--:|--:|--:|--:|--:|--:|"""


def main() -> int:
    """Measure, print, write; 0 also where there is nothing to measure with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=240.0, help="begin nothing new after this time")
    parser.add_argument("--out", type=Path, help="folder to write table.json, table.md and the tuned launches to")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU where there is no device")
    args = parser.parse_args()
    if DEVICE.type != "cuda" and not args.tiny:
        print("no CUDA or ROCm device: nothing measured", file=sys.stderr)
        return 0
    end = time.monotonic() + args.seconds
    torch.manual_seed(0)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        os.environ["DIAGNOSE_CACHE"] = str(args.out.resolve())  # what is tuned here lies beside what it gave
    table = Table(args.out, machine(args.tiny))
    print(f"{title(table.machine)}\n{HEAD}", flush=True)
    largest = TINY if args.tiny else sys.maxsize
    for compiling in (False, True):
        for some in (slice(1), slice(1, None)):  # the first size of each kernel before the others
            for name in args.kernels or CASES:
                for case in islice(CASES[name](largest), some.start, some.stop):
                    measure(case, compiling, end, table)
    print("", *table.summary(), sep="\n")
    return 0


def measure(case: Case, compiling: bool, end: float, table: Table) -> None:
    """The plain ways of a case, or the compiled one; what there is no time for is a row that says so."""
    ways: Ways = dict(case.ways)
    if compiling and case.compiled is None and "eager" not in ways:
        return
    if compiling:
        # Of one shape: else the second size of a kernel would be compiled for all sizes.
        ways = {"torch.compile": torch.compile(case.compiled or case.ways["eager"], dynamic=False)}
    if time.monotonic() + (COMPILE_S if compiling else 0) > end:
        for way in ways:
            table.add(case, Timed(way, problem="no time left"))
        return
    torch.compiler.reset()
    for found in timed(ways, case.inputs, DEVICE):
        table.add(case, found)
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def machine(tiny: bool) -> dict[str, Any]:
    """The device and its measured ceilings."""
    return {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "kernels": kernels.backend(DEVICE),
        "liger": liger("swiglu", "LigerSiLUMulFunction") is not None,
        "bytes_per_s": copied_bytes_per_s(DEVICE, 1 << (20 if tiny else 30)),
        "operations_per_s": multiplied_per_s(DEVICE, TINY if tiny else 8192),
    }


def title(machine: dict[str, Any]) -> str:
    """Return the device and the versions, in one line."""
    return (
        f"{machine['device']}, torch {machine['torch']}, {machine['kernels']} kernels, bfloat16; ceilings measured: "
        f"copy {machine['bytes_per_s'] / 1e9:,.0f} GB/s, product {machine['operations_per_s'] / 1e12:,.1f} TFLOP/s"
        f"{'' if machine['liger'] else '; Liger-Kernel is not installed'}\n"
    )


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if row["problem"]:
        return f"| {row['case']} | {row['way']} | {row['problem']} | | | | | |"
    rate = f"{row['per_s'] / 1e12:,.1f} TFLOP/s" if row["unit"] == "FLOP" else f"{row['per_s'] / 1e9:,.0f} GB/s"
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f}"
    return (
        f"| {row['case']} | {row['way']} | {row['device_ms']:.3f} | {row['low_ms']:.3f} to {row['high_ms']:.3f} "
        f"| {row['alone_ms']:.3f} | {rate} | {row['share']:.0%} | {peak} |"
    )


def labels(rows: int, classes: int) -> Tensor:
    """Fresh class indices."""
    return torch.randint(0, classes, (rows,), device=DEVICE)


def linear_cross_entropy(largest: int) -> Iterator[Case]:
    """The head and the loss of language models, and the two ways to the gradients."""
    for rows, width, classes in sizes(largest, (8192, 4096, 128256), (8192, 768, 50257)):
        target = labels(rows, classes)
        ours = partial(with_target, kernels.linear_cross_entropy, target)

        def eager(h: Tensor, w: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(F.linear(h, w), target)

        def widened(h: Tensor, w: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(F.linear(h, w).float(), target)

        ways: Ways = {"ours": ours, "eager": eager, "eager, float32 logits": widened}
        ways["ours, recomputing"] = partial(ours, recompute=True)
        native, options = getattr(F, "linear_cross_entropy", None), getattr(torch.nn, "LinearCrossEntropyOptions", None)
        if native is not None and options is not None:
            ways["torch, chunked"] = partial(with_target, partial(native, options=options()), target)
        if (theirs := liger("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")) is not None:
            ways["Liger"] = lambda h, w, target=target, theirs=theirs: theirs.apply(h, w, target)[0]
        inputs = values(rows, width), values(classes, width, scale=width**-0.5)
        yield Case(
            f"linear cross entropy {rows}×{width}×{classes}", inputs, ways, operations=6 * rows * width * classes
        )


def chunks_of_rows(largest: int) -> Iterator[Case]:
    """Yield cases of several chunk sizes, the default among them."""
    for rows, width, classes in sizes(largest, (8192, 4096, 128256), (8192, 768, 50257)):
        call = partial(with_target, kernels.linear_cross_entropy, labels(rows, classes))
        ways: Ways = {f"ours, {size} rows a chunk": partial(call, chunk_rows=size) for size in (512, 1024, 2048, 4096)}
        inputs = values(rows, width), values(classes, width, scale=width**-0.5)
        name = f"chunks of linear cross entropy {rows}×{width}×{classes}"
        yield Case(name, inputs, ways, operations=6 * rows * width * classes)


def cross_entropy(largest: int) -> Iterator[Case]:
    """Losses of logits that are there already."""
    for rows, classes in sizes(largest, (8192, 50257), (8192, 128256), (512, 1000)):
        target = labels(rows, classes)

        def eager(x: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(x, target)

        def widened(x: Tensor, target: Tensor = target) -> Tensor:
            return F.cross_entropy(x.float(), target)

        ways: Ways = {
            "ours": lambda x, target=target: kernels.cross_entropy(x, target),
            "eager": eager,
            "eager, float32 logits": widened,
        }
        if (theirs := liger("cross_entropy", "LigerCrossEntropyFunction")) is not None:
            # It writes the gradient over its logits: what is not a leaf is given to it, as in a model.
            ways["Liger, on a copy"] = lambda x, target=target, theirs=theirs: theirs.apply(x * 1, target, None)[0]
        logits = values(rows, classes)
        name = f"cross entropy {rows}×{classes}"
        yield Case(name, (logits,), ways, moved_bytes=3 * logits.nbytes, compiled=widened)


def add_rms_norm(largest: int) -> Iterator[Case]:
    """The blocks of transformers, both outputs used."""
    for rows, width in sizes(largest, (8192, 4096), (8192, 8192), (8192, 1024), (8191, 4095), (512, 768)):
        inputs = values(rows, width), values(rows, width), values(width)

        def eager(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            summed = x + residual
            wide = summed.float()
            scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return weight * scaled.to(x.dtype), summed

        def native(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            summed = x + residual
            return F.rms_norm(summed, summed.shape[-1:], weight, 1e-6), summed

        ways: Ways = {"ours": kernels.add_rms_norm, "eager": eager, "torch's rms_norm": native}
        if (theirs := liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")) is not None:
            ways["Liger"] = lambda x, residual, weight, theirs=theirs: theirs.apply(
                x, residual, weight, 1e-6, 0.0, "llama", False
            )
        # Forward two in and two out; backward two gradients and the sum in, one gradient out.
        yield Case(f"add + RMSNorm {rows}×{width}", inputs, ways, moved_bytes=8 * inputs[0].nbytes)


def swiglu(largest: int) -> Iterator[Case]:
    """The activation of gated feed-forward blocks."""
    for rows, width in sizes(largest, (8192, 4096), (8192, 14336), (8191, 4095), (512, 768)):
        inputs = values(rows, width), values(rows, width)

        def eager(gate: Tensor, up: Tensor) -> Tensor:
            return F.silu(gate) * up

        ways: Ways = {"ours": kernels.swiglu, "eager": eager}
        if (theirs := liger("swiglu", "LigerSiLUMulFunction")) is not None:
            ways["Liger"] = theirs.apply
        # Forward two in and one out; backward the gradient and both in, two gradients out.
        yield Case(f"SwiGLU {rows}×{width}", inputs, ways, moved_bytes=8 * inputs[0].nbytes)


def with_target(call: Callable[..., Any], target: Tensor, hidden: Tensor, weight: Tensor, **options: Any) -> Any:
    """A call with the targets in their place after the tensors that gradients are wanted for."""
    return call(hidden, weight, target, **options)


CASES: dict[str, Callable[[int], Iterator[Case]]] = {
    "linear-cross-entropy": linear_cross_entropy,
    "cross-entropy": cross_entropy,
    "add-rms-norm": add_rms_norm,
    "add-layer-norm": add_layer_norm,
    "swiglu": swiglu,
    "geglu": geglu,
    "rotary": rotary,
    "softmax": softmax,
    "chunks": chunks_of_rows,
}

if __name__ == "__main__":
    sys.exit(main())
