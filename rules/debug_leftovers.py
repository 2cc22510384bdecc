"""Settings for debugging are still on.

What it finds
    Anomaly detection, `CUDA_LAUNCH_BLOCKING=1`, and a profiler of the program's own, where they cost time.
    Deterministic algorithms are a note only: whoever asked for them may need them.

Why it costs
    Anomaly detection reads every gradient back to see whether it is a number, and the host waits for each answer; in
    the forward pass it writes down the Python stack of every operator, which takes the host some 0.1 ms each.
    Blocking launches let the host issue nothing while the device works. A profiler writes down every call, and what it
    has recorded is saved in the loop.

What proves it
    Anomaly detection: backward operators whose results are tested with `isnan` and waited for. Blocking launches:
    launch calls that last until their kernels have ended. A profiler: stack samples inside it while the device idles.
    The time is that of the tests, and idle time that waits and late launches cause; an upper bound, as a host that need
    not wait may still be slower than the device. Without a device it is that of the tests and of writing down stacks,
    by the recorded Python calls, else by their part of the samples; where neither is recorded, the stacks are not
    counted, and more is to be had back. A live run saw the line that turns anomaly detection on; a recording with
    stacks names the one where gradients are tested.

What fixes it
    Removing the setting. `drop-debug` removes what ends no run; anomaly detection stops at a NaN, so that whether it is
    still wanted is for people to say.

Thresholds
    TESTED (half): this part of the backward operators has results that are tested; none has without the setting.
    BLOCKED (95 %) of at least FEWEST (10) kernels longer than diagnose.measure.steps.idle.LATENCY_NS (20 µs): launch
    calls return in 5 to 10 µs, so that hardly any outlasts such a kernel by chance. CLOCKS_NS (5 µs): how well the
    clocks of host and device agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.steps.idle import LATENCY_NS
from diagnose.measure.views.names import named
from diagnose.measure.views.stacks import sampled
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    EventTable,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_ns,
)
from diagnose.trace.schema import WorkKind

TESTED = 0.5
BLOCKED = 0.95
FEWEST = 10
CLOCKS_NS = 5_000

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")
_TEST = re.compile(r"^aten::isnan$")
_ANSWER = re.compile(r"^aten::item$")
# Not torch/autograd/profiler.py: its ranges are on the stack in every optimizer step, recorded or not.
_WRITES = re.compile(r"torch/fx/traceback\.py\(\d+\): format_stack$")
_PROFILERS = ("torch/profiler/", "/cProfile.py", "/tracemalloc.py")
_OWN_PROFILER = "the program's own profiler was recording all the time"


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Yield a claim for each debugging setting that is seen to be on."""
    if measures.step_count == 0:
        return
    found = [*_anomaly(measures), *_blocking(measures), *_profiler(measures)]
    facts = measures.trace.facts
    if facts.deterministic:
        found.append(_note("deterministic algorithms are asked for: some operators have slower ones", "deterministic"))
    if not found and measures.has_device and not len(measures.trace.calls):
        yield CannotTell("debug-leftovers", "the host's launch calls, to see whether they block")
    yield from found


def _anomaly(measures: Measures) -> Iterator[Claim]:
    tests, answers = _rows(measures, _TEST), _rows(measures, _ANSWER)
    backward = len(_rows(measures, _BACKWARD))
    if len(tests) == 0 or len(answers) == 0 or len(tests) < TESTED * backward or backward == 0:
        return
    ops = measures.trace.ops
    after = np.searchsorted(ops.start_ns[answers], ops.start_ns[tests])
    tests, after = tests[after < len(answers)], after[after < len(answers)]
    asked = Intervals.of(ops.start_ns[tests], ops.end_ns[answers[after]])
    tested = measures.places(asked & measures.counted)
    if measures.has_device:
        rows = measures.rows_within_steps(asked.contains(measures.launches.start_ns))
        claims = measures.time_of(rows) | _late(measures)
    else:
        claims = asked & measures.counted
    written, share = _written(measures)
    writes = ", and writes down the stack of every operator" if share else ""
    yield from _claim(
        measures,
        f"anomaly detection tests every gradient and waits for the answer{writes}",
        claims,
        Evidence(
            "tested gradients per step",
            len(tests) / measures.step_count,
            "count",
            tuple(tests.tolist()),
            EventTable.OPS,
        ),
        [*_asked_for(measures), *tested],
        (written - claims, share),
    )


def _written(measures: Measures) -> tuple[Intervals, float]:
    """Return when stacks are written down, and for what part of the steps; of samples that see it, all of the forward
    pass.

    With a device it is host time, and counts where the device waits for its launches.
    """
    trace = measures.trace
    calls = trace.frames.where(named(trace.names, trace.frames.name, _WRITES))
    if measures.has_device:
        return Intervals.empty(), 0.0
    if len(calls):
        written = Intervals.of(calls.start_ns, calls.end_ns) & measures.counted
        return written, measures.share(written)
    share = _part_of_samples(measures)
    return (_forward(measures), share) if share else (Intervals.empty(), 0.0)


def _part_of_samples(measures: Measures) -> float:
    """The part of the samples that saw anomaly detection write down a stack."""
    trace = measures.trace
    if not len(trace.samples):
        return 0.0
    inside = [
        index
        for index, stack in enumerate(trace.stacks)
        if any(frame.file.endswith("torch/fx/traceback.py") and frame.function == "format_stack" for frame in stack)
    ]
    return float(np.isin(trace.samples.stack, inside).mean())


def _forward(measures: Measures) -> Intervals:
    """The operators that autograd numbers, outside the backward pass."""
    ops = measures.trace.ops
    rows = (ops.sequence >= 0) & (ops.forward_thread < 0)
    return Intervals.of_rows(ops, rows) & measures.counted


def _asked_for(measures: Measures) -> list[Place]:
    """The user's lines that turn anomaly detection on, where a live run saw them."""
    sites = [site for site in measures.trace.sites if site.kind == "anomaly" and site.arguments.get("enabled")]
    return [Place(site.file, site.line, None, site.function) for site in sites if site.owned]


def _blocking(measures: Measures) -> Iterator[Claim]:
    device, launches = measures.trace.device, measures.launches
    kernels = measures.rows_within_steps((device.kind == WorkKind.KERNEL) & launches.linked)
    long = kernels[device.end_ns[kernels] - device.start_ns[kernels] >= LATENCY_NS]
    if len(long) < FEWEST:
        return
    blocked = float((launches.end_ns[long] >= device.end_ns[long] - CLOCKS_NS).mean())
    if blocked < BLOCKED:
        return
    yield from _claim(
        measures,
        "every launch waits until its kernel has ended (CUDA_LAUNCH_BLOCKING)",
        _late(measures),
        Evidence("launch calls that outlast their kernels", blocked, "share", tuple(long.tolist())),
    )


def _profiler(measures: Measures) -> Iterator[Claim]:
    trace = measures.trace
    inside = {
        index
        for index, stack in enumerate(trace.stacks)
        if any(part in frame.file.replace("\\", "/") for frame in stack for part in _PROFILERS)
    }
    time = sampled(trace, inside) & measures.idle_of("python", "dispatch", "unknown", "io", "sync")
    if time.total_ns:
        yield from _claim(
            measures,
            "a profiler of the program's own is at work in steady steps",
            time,
            Evidence("samples inside it", float(np.isin(trace.samples.stack, sorted(inside)).mean()), "share"),
        )
    elif trace.facts.steady is not None and _OWN_PROFILER in trace.facts.steady:
        yield _note("a profiler of the program's own records all the time", "recording")


def _claim(
    measures: Measures,
    what: str,
    claims: Intervals,
    evidence: Evidence,
    where: Sequence[Place] = (),
    beside: tuple[Intervals, float] = (Intervals.empty(), 0.0),
) -> Iterator[Claim]:
    """`beside` are other stretches of time, and for what part of the steps they are to be had back."""
    gain = recoverable_ns(measures, claims)
    gain += min(int(beside[1] * measures.total_ns), recoverable_ns(measures, beside[0]))
    claims |= beside[0]
    if gain:
        yield Claim(
            summary=f"{what}: {format_ns(gain / measures.step_count)} per step",
            recoverable_ns=gain,
            claims=claims,
            confidence=Confidence.BOUND,
            evidence=[evidence],
            where=where or measures.places(claims),
            confirm="a run without it: what the host cannot issue fast enough by itself remains",
        )


def _note(summary: str, measure: str) -> Claim:
    return Claim(
        summary=summary,
        confidence=Confidence.HINT,
        evidence=[Evidence(measure, 1, "flag")],
        confirm="a run without it",
    )


def _late(measures: Measures) -> Intervals:
    """Idle time of a host that waits, or issues work only once the device has run dry."""
    return (measures.idle["sync"] | measures.issue_gaps) & measures.counted


def _rows(measures: Measures, pattern: re.Pattern[str]) -> np.typing.NDArray[np.int64]:
    """Operators of a name within the host's counted steps, in order."""
    ops, steps = measures.trace.ops, measures.steps
    found = np.array([*(pattern.search(name) is not None for name in measures.trace.names), False], np.bool_)
    inside = (ops.start_ns >= steps.host_start_ns[0]) & (ops.start_ns < steps.host_end_ns[-1])
    return np.flatnonzero(found[ops.name] & inside)


_BACKWARD_OPS = {"b": "autograd::engine::evaluate_function: MmBackward0", "n": "aten::isnan", "i": "aten::item"}

_drawn = partial(drawn, repeat=4, unit_ns=20_000, ops=_BACKWARD_OPS)
_FIRES = (
    # Blocking launches: the host stands in each until its kernel is done.
    drawn(
        """
        host: olllll ollll olllll
        gpu :   kkkk  kkk   kkkk
        step:                    |
        """,
        repeat=6,
        unit_ns=25_000,
    ),
    # Anomaly detection: after each backward operator its gradient is tested, and the host waits.
    _drawn(
        """
        host: blnlisss blnlisss blnlisss
        gpu :  kkkzz    kkkzz    kkkzz
        step:                           |
        """,
        kernels={"z": "isnan_kernel"},
    ),
    # Without a device; a sampler saw that stacks are written down in the forward pass.
    drawn(
        """
        op  : ffffffff
        op  :         bbbb
        host: oooooooonni.
        line: 11wwwww12222
        step:             |
        """,
        repeat=4,
        ops={**_BACKWARD_OPS, "f": "aten::linear"},
        numbered="f",
        stacks={
            "1": [("train.py", 8, "main")],
            "2": [("train.py", 9, "main")],
            "w": [("/lib/torch/fx/traceback.py", 300, "format_stack"), ("train.py", 8, "main")],
        },
    ),
)

_SILENT = (
    # Launches return at once.
    drawn(
        """
        host: olololol
        gpu :   kkkkKKKKkkkkKKKK
        step:                   |
        """,
        repeat=4,
        unit_ns=25_000,
        kernels={"K": "other_kernel"},
    ),
    # A launch call is slow, and its short kernel is over before it returns.
    drawn(
        """
        host: olll olll olll
        gpu :   k    k    k
        step:                |
        """,
        repeat=4,
        unit_ns=5_000,
    ),
    # One test of the loss for a number in each step.
    _drawn("""
        host: bl bl bl nlisss
        gpu :   k  k  k   k
        step:                 |
    """),
)

RULE = Rule(
    "debug-leftovers", check, fixers=("drop-debug",), fires=_FIRES, silent=_SILENT, nearness=5, symptom=Symptom.HOST
)
