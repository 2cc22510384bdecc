"""One kernel takes a large part of the step and uses little of the device.

What it finds
    A kernel, by name, with a large share of the step, that comes nowhere near what the device computes or moves at
    most, or that runs on a few multiprocessors while the others wait.

Why it costs
    The device is busy, but not with what it is good at: a scan along one row, an accumulation in one block, atomic
    additions to one address, accesses that use a few bytes of each line of memory.

What proves it
    The kernel's arithmetic and bytes, from its operator's shapes, over the device's ceilings: the least that it could
    take (roofline); and its grid over the device's multiprocessors. The recoverable time is an upper bound: a good
    kernel reaches REACHED of the nearer ceiling. Kernels that are part of a known ailment (products in fp32, attention
    or losses written out, layouts) come nearer to a ceiling than this rule looks, or have a rule of their own.

What fixes it
    Another operator or layout that computes the same; else the counters of the kernel, with Nsight Compute.

Thresholds
    SHARE 0.05: of the step; what a finding of medium severity must give back.
    LONG_NS 50 µs: shorter kernels spend their time starting and ending, whatever they do.
    FAR 0.1: of the nearer ceiling. Elementwise kernels, reductions and normalisations of PyTorch reach 0.5 to 0.9 on an
    H200, sorting and attention's backward pass 0.2 to 0.3. FAR_PRODUCT 0.05 for products, which are slow for many
    reasons that have rules of their own.
    FAR_LAYER 0.01: for convolutions and normalisations, of which a program takes what the library has for their shape:
    on an H200 grouped convolutions of volumes, with the best engine that cuDNN found, reached 0.02 to 0.04, PyTorch's
    batch normalisation of volumes in channels-last format 0.05. Up to FAR they are a note whose cost is not known.
    REACHED 0.6: of the nearer ceiling, by a good kernel.
    EMPTY 0.25: of the multiprocessors filled; below, the others wait. The rest of the kernels must fill OTHERS 0.5, or
    it is the batch that is small (`small-batch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import gained_ns, sped_up
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, Trace, drawn, format_share
from diagnose.trace.schema import Int64, WorkKind

SHARE = 0.05
LONG_NS = 50_000
FAR, FAR_PRODUCT, FAR_LAYER = 0.1, 0.05, 0.01
REACHED = 0.6
EMPTY = 0.25
OTHERS = 0.5
_KNOWN = 0.5  # the part of the kernel's time that must be modelled
_FAR = {
    KernelClass.MATMUL: FAR_PRODUCT,
    KernelClass.CONVOLUTION: FAR_LAYER,
    KernelClass.NORM: FAR_LAYER,
}
_LEFT_OUT = (KernelClass.COLLECTIVE, KernelClass.ATTENTION)
_LONGEST_NAME = 60  # characters of a kernel's name that a sentence shows


@dataclass(frozen=True)
class _Kernel:
    """One kernel of the counted steps, all its runs together."""

    name: str
    rows: Int64
    length_ns: int
    reached: float | None
    """The share of the nearer ceiling; None where nobody knows."""
    fill: float | None
    """The share of the multiprocessors, on average; None where nobody knows."""
    kind: KernelClass

    @property
    def left(self) -> float:
        """The part of its time that a good kernel would take; 1.0 where this one is good enough, or nobody knows."""
        by_work = self.reached / REACHED if self.reached is not None else None
        if by_work is not None and self.reached is not None and self.reached < _FAR.get(self.kind, FAR):
            return by_work
        if self.fill is not None and self.fill < EMPTY:
            return min(max(self.fill, by_work or 0.0), 1.0)
        return 1.0

    @property
    def is_what_there_is(self) -> bool:
        """Whether the kernel is slow for its arithmetic and bytes, but the library has no better one for this layer."""
        slow = self.reached is not None and self.reached < FAR
        return slow and self.left == 1.0 and self.kind in (KernelClass.CONVOLUTION, KernelClass.NORM)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The kernels that take long for what they do."""
    if not measures.has_device:
        yield CannotTell("kernel-hotspot", "a recording of the device's work")
        return
    kernels = (measures.trace.device.kind == WorkKind.KERNEL) & ~np.isin(measures.classes, _LEFT_OUT)
    rows = measures.rows_within_steps(kernels)
    large = list(_large(measures, rows))
    if any(one.reached is None and one.fill is None for one in large):
        yield CannotTell("kernel-hotspot", "shapes of the operators (record_shapes=True), on a device whose data sheet "
                         "is known")  # fmt: skip
    for one in large:
        if one.is_what_there_is:
            yield _note(measures, one)
        elif one.left < 1 and _others_fill(measures, rows, one):
            yield from _claim(measures, one)


def _large(measures: Measures, rows: Int64) -> Iterator[_Kernel]:
    """Kernels with a large share of the step, each run of them long."""
    device = measures.trace.device
    length = (device.end_ns - device.start_ns)[rows]
    names = device.name[rows]
    if not len(rows) or names.min() < 0:
        return
    total, runs = np.bincount(names, weights=length), np.bincount(names)
    for name in np.flatnonzero((total >= SHARE * measures.total_ns) & (total >= LONG_NS * runs) & (runs > 0)).tolist():
        mine = names == name
        kind = int(np.bincount(measures.classes[rows[mine]]).argmax())
        yield _Kernel(
            measures.trace.names[name],
            rows[mine],
            int(length[mine].sum()),
            _reached(measures, rows[mine], length[mine]),
            _fill(measures, rows[mine], length[mine]),
            KernelClass(kind),
        )


def _reached(measures: Measures, rows: Int64, length: Int64) -> float | None:
    """Return how near the kernel came to its nearer ceiling; None where less than `_KNOWN` of its time is modelled."""
    least = measures.kernel_bounds.least_ns[rows]
    known = ~np.isnan(least)
    if length[known].sum() < _KNOWN * length.sum() or not length[known].sum():
        return None
    return float(least[known].sum() / length[known].sum())


def _fill(measures: Measures, rows: Int64, length: Int64) -> float | None:
    fill = measures.fill[rows]
    known = ~np.isnan(fill)
    return float((fill * length)[known].sum() / length[known].sum()) if length[known].sum() else None


def _others_fill(measures: Measures, rows: Int64, one: _Kernel) -> bool:
    """Whether the device is full elsewhere, or nobody knows."""
    others = np.setdiff1d(rows, one.rows)
    device = measures.trace.device
    fill = _fill(measures, others, (device.end_ns - device.start_ns)[others])
    return fill is None or fill >= OTHERS


def _note(measures: Measures, one: _Kernel) -> Claim:
    return Claim(
        summary=f"{_described(measures, one)}: a library's kernel for such a layer, so that another shape, format or "
        "layer may be what helps",
        confidence=Confidence.HINT,
        evidence=_evidence(measures, one),
        where=places_of_ops(measures, measures.op_of_work[one.rows]),
        confirm=_counters(measures, one),
    )


def _claim(measures: Measures, one: _Kernel) -> Iterator[Claim]:
    time = measures.time_of(one.rows)
    cut = sped_up(measures, one.rows, one.left)
    gain = gained_ns(measures, cut, int(time.total_ns * (1 - one.left)))
    if gain == 0:
        return
    yield Claim(
        summary=_described(measures, one),
        recoverable_ns=gain,
        claims=time,
        cut=cut,
        confidence=Confidence.BOUND,
        evidence=_evidence(measures, one),
        where=places_of_ops(measures, measures.op_of_work[one.rows]),
        fixers=("cudnn-benchmark", "channels-last") if _convolves(measures, one) else (),
        confirm=_counters(measures, one),
    )


def _convolves(measures: Measures, one: _Kernel) -> bool:
    """Whether the kernel is a convolution's: the library may have a better one, or one for another format."""
    ops = measures.op_of_work[one.rows]
    names = np.unique(measures.trace.ops.name[ops[ops >= 0]]).tolist()
    return any("convolution" in measures.trace.names[name] for name in names)


def _described(measures: Measures, one: _Kernel) -> str:
    time, ops = measures.time_of(one.rows), measures.op_of_work[one.rows]
    names = [measures.trace.names[name] for name in np.unique(measures.trace.ops.name[ops[ops >= 0]]).tolist()]
    short = one.name if len(one.name) <= _LONGEST_NAME else f"{one.name[: _LONGEST_NAME - 1]}…"
    caller = f" of {', '.join(names[:2])}" if names else ""
    parts = []
    if one.reached is not None:
        parts.append(f"reaches {format_share(one.reached)} of what the device could do for it")
    if one.fill is not None and one.fill < EMPTY:
        parts.append(f"fills {format_share(one.fill)} of the device")
    return f"the kernel {short}{caller} takes {of_traced_step(measures, time)} and {' and '.join(parts)}"


def _evidence(measures: Measures, one: _Kernel) -> list[Evidence]:
    return [
        Evidence("runs per step", len(one.rows) / measures.step_count, "count", tuple(one.rows.tolist())),
        Evidence("mean run", one.length_ns // len(one.rows), "ns"),
        *([] if one.reached is None else [Evidence(_ceiling(measures), one.reached, "share")]),
        *([] if one.fill is None else [Evidence("multiprocessors filled", one.fill, "share")]),
    ]


def _counters(measures: Measures, one: _Kernel) -> str:
    """The command of the vendor's own profiler of kernels."""
    names = (measures.trace.facts.device_name or "", *measures.trace.device_names)
    if any(name.startswith("AMD ") for name in names):
        return f"rocprof-compute profile --name hotspot --kernel {_pattern(one.name)} -- the program"
    return f"ncu --set full --kernel-name regex:{_pattern(one.name)} --launch-count 3 on the program"


def _ceiling(measures: Measures) -> str:
    return f"of the nearer ceiling ({measures.ceilings.source})" if measures.ceilings else "of the nearer ceiling"


def _pattern(name: str) -> str:
    """The kernel's own name out of its full signature, as profilers of kernels match it."""
    words = name.removeprefix("void ").replace("(anonymous namespace)::", "").split("<")[0].split("(")[0]
    return words.split("::")[-1].strip() or "."


def _grids(trace: Trace, blocks: dict[str, float]) -> Trace:
    """The trace with so many blocks (of 8 warps) a multiprocessor for kernels of these names."""
    size = np.array([blocks.get(trace.names[name], 4.0) for name in trace.device.name.tolist()], np.float32)
    return replace(trace, device=replace(trace.device, blocks_per_sm=size, warps_per_sm=8 * size))


_SCAN = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>(float*, float const*)"
_STEP = """
    host: olrlSSSSS
    gpu :   kkkssss
    step:          |
"""


def _step(op: str, shapes: str, kernel: str = _SCAN) -> Trace:
    """A product, then an operator of these shapes that takes 4 ms."""
    return drawn(
        _STEP,
        repeat=4,
        kernels={"k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "s": kernel},
        ops={"o": "aten::mm", "r": op},
        shapes={"r": (shapes, '["float","Scalar"]')},
    )


_FIRES = (
    # 32 MB in and out are 14 µs of an H200's bandwidth.
    _step("aten::cumsum", "[[8,1048576],[]]"),
    # A kernel of the program's own that nobody can model, in a grid of one block.
    _grids(_step("mine::scan", "[[8,1048576],[]]", "my_scan_kernel"), {"my_scan_kernel": 1 / 132}),
)
_SILENT = (
    # 9 GB in and out take 3.8 ms: the kernel could hardly be faster.
    _step("aten::cumsum", "[[2304,1048576],[]]"),
    # Nobody knows what it does, and it fills the device.
    _grids(_step("mine::scan", "[[8,1048576],[]]", "my_scan_kernel"), {}),
    # All kernels have few blocks: the batch is small.
    _grids(
        _step("mine::scan", "[[8,1048576],[]]", "my_scan_kernel"),
        {"my_scan_kernel": 0.1, "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": 0.1},
    ),
    # Kernels of a few µs never reach a ceiling.
    drawn(
        """
        host: olrlrlrl
        gpu :   kkss ss ss
        step:             |
        """,
        repeat=4,
        unit_ns=5_000,
        kernels={"k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "s": _SCAN},
        ops={"o": "aten::mm", "r": "aten::cumsum"},
        shapes={"r": ("[[8,1024],[]]", '["float","Scalar"]')},
    ),
)
RULE = Rule("kernel-hotspot", check, fires=_FIRES, silent=_SILENT, nearness=80, symptom=Symptom.KERNELS)
