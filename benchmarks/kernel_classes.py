"""Checks kernels' classes and bytes against what Nsight Compute counted.

    python benchmarks/kernel_classes.py RECORDING COUNTERS.csv [RECORDING COUNTERS.csv …] [--json]

Each pair is a recording of `diagnose run` (or of torch.profiler with shapes) and what Nsight Compute counted of the
same program, with `--csv --page raw` and these metrics: `dram__bytes.sum`, `gpu__time_duration.sum`,
`dram__throughput.avg.pct_of_peak_sustained_elapsed`, `sm__throughput.avg.pct_of_peak_sustained_elapsed`,
`sm__inst_executed_pipe_tensor_op_gmma.sum`, `sm__inst_executed_pipe_tensor_op_hmma.sum`,
`sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum`, and `launch__grid_size`. Launches are matched by name, grid and
length.

A kernel's class is counted as matmul-bound where it issues products and its multiprocessors are busier than the memory,
else as memory-bound where the memory is busy for a fifth of the time, else as latency-bound. Of what a kernel writes,
as much as the second-level cache holds is not yet in memory when it ends, and is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from diagnose.measure import Measures
from diagnose.measure.roofline.kernel_bounds import Bound
from diagnose.measure.roofline.kernel_counters import Counted, KernelKey, counted_launches, kernel_key, mean_of
from diagnose.measure.roofline.occupancy import multiprocessors
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import WorkKind

ALIKE = 0.1
"""Launches of one kernel whose lengths differ by less do the same work."""
CACHE_BYTES = 50_000_000
"""What the second-level cache of an H100 or H200 holds."""


@dataclass(frozen=True)
class Compared:
    """One kernel of one grid and one length."""

    program: str
    kernel: str
    blocks: int
    counted_ns: int
    counted_class: str
    predicted_class: str
    counted_bytes: int
    predicted_bytes: int
    """-1 is unknown."""

    @property
    def is_right(self) -> bool:
        """Whether the class is the counted one."""
        return self.counted_class == self.predicted_class

    @property
    def error(self) -> float | None:
        """The error of the computed bytes, as a share of the counted ones; None where they are unknown."""
        return abs(self.predicted_bytes / self.counted_bytes - 1) if self.predicted_bytes >= 0 else None


def compared(recording: Path, counters: Path) -> Iterator[Compared]:
    """Every counted kernel that was recorded as well."""
    (trace,), (counts,) = open_traces([recording]), open_traces([counters])
    predicted = _predicted(trace)
    for (key, blocks), launches in _by_grid(counts).items():
        rows = predicted.get((key, blocks), [])
        for like in _alike(launches):
            one = mean_of(like)
            if rows and one.bytes and one.length_ns:
                _, kind, moved = min(rows, key=lambda row: abs(row[0] / (one.length_ns or 1) - 1))
                yield Compared(
                    recording.name, key[0], blocks, int(one.length_ns), _class(one), kind, int(one.bytes), moved
                )


def _predicted(trace: Trace) -> dict[tuple[KernelKey, int], list[tuple[int, str, int]]]:
    """Return length, class and bytes of every recorded launch by kernel and grid."""
    measures = Measures(trace)
    bounds, device, sms = measures.kernel_bounds, trace.device, multiprocessors(trace)
    if sms is None:
        raise SystemExit(f"{trace.source}: of a device whose number of multiprocessors is unknown")
    found: dict[tuple[KernelKey, int], list[tuple[int, str, int]]] = {}
    for row in measures.rows_within_steps(device.kind == WorkKind.KERNEL).tolist():
        key = kernel_key(trace.names[device.name[row]]), int(np.rint(float(device.blocks_per_sm[row]) * sms))
        length = int(device.end_ns[row] - device.start_ns[row])
        found.setdefault(key, []).append((length, Bound(bounds.kind[row]).name.lower(), int(bounds.bytes[row])))
    return found


def _by_grid(counts: Trace) -> dict[tuple[KernelKey, int], list[Counted]]:
    found: dict[tuple[KernelKey, int], list[Counted]] = {}
    for key, launches in counted_launches(counts).items():
        for one in launches:
            found.setdefault((key, int(one.blocks or 0)), []).append(one)
    return found


def _alike(launches: Sequence[Counted]) -> list[list[Counted]]:
    """Launches of like length together."""
    groups: list[list[Counted]] = []
    for one in sorted(launches, key=lambda launch: launch.length_ns or 0.0):
        last = groups[-1][0].length_ns if groups else None
        if last and (one.length_ns or 0.0) <= (1 + ALIKE) * last:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _class(one: Counted) -> str:
    return Bound(one.kind or Bound.LATENCY).name.lower()


def main() -> int:
    """Compare and print; 1 where nothing could be compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="RECORDING COUNTERS.csv")
    parser.add_argument("--json", action="store_true", help="print every kernel as JSON")
    args = parser.parse_args()
    if len(args.paths) % 2:
        parser.error("recordings and counters come in pairs")
    pairs = zip(args.paths[::2], args.paths[1::2], strict=True)
    found = [one for recording, counters in pairs for one in compared(recording, counters)]
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    elif found:
        print(table(found))
    return 0 if found else 1


def table(found: Sequence[Compared]) -> str:
    """Every kernel on a line, and what they come to."""
    lines = []
    for one in found:
        mark = " " if one.is_right else "!"
        error = "bytes unknown" if one.error is None else f"{one.error:6.1%} off"
        lines.append(
            f"{mark} {one.program:14.14} {one.kernel:44.44} {one.blocks:7} {one.counted_ns / 1e3:8.1f} µs "
            f"{one.counted_class:8} {one.predicted_class:8} {one.counted_bytes / 1e6:8.1f} MB {error}"
        )
    errors = [one.error for one in found if one.error is not None]
    large = [one.error for one in found if one.error is not None and one.counted_bytes > CACHE_BYTES]
    right = sum(one.is_right for one in found)
    lines.append(f"{len(found)} kernels, {right} in the right class ({right / len(found):.0%})")
    for which, some in (("all", errors), ("those that move more than the cache holds", large)):
        if some:
            lines.append(f"bytes of {which}: {len(some)} known, {median(some):.1%} off in the median")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
