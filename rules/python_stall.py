"""The device idles while the host runs Python of the user's, outside the framework, or computes on the processor.

What it finds
    Stretches of idle time in which the launching thread is in no operator, no runtime call, no loader and no garbage
    collection: it runs Python. Long ones only; the few microseconds of Python around each operator are launch cost.

    Idle time in which an operator computes on the processor, step after step: random numbers that are drawn there and
    then copied, a batch that is put together or changed by operators on the host, what a compiled function does before
    it launches a kernel that the program has written.

    Idle time in which the host reads or writes files, step after step: a checkpoint in each, a log that is flushed.

Why it costs
    The device gets its next work only when Python comes round to it: metrics computed in plain Python, logging,
    sleeping, parsing, per-sample loops.

What proves it
    Idle time of the device before a launch call with nothing else on the launching thread; on a CPU-only run, time of
    the training thread outside operators and loader. Samples name the line; alone, they do not tell Python from an
    operator that the line calls.

    The framework's own Python is not the user's: calls of the optimizer, the start of a backward pass, and what the
    recorded stacks show to be in its files. Where a recording has operators but no stacks, whatever else holds the
    thread up outside the framework (garbage collection, files, a lock) looks the same, and the text says so. Where it
    has runtime calls but no operators and no stacks, nothing tells Python from the framework's own work, or from a
    program that has no Python: the rule cannot tell. It is no more than a bound where the thread stands still within
    operators for as long: it may have had no core (`cpu-contention`), which hits Python and operators alike.

What fixes it
    Metrics that few steps show are computed in those alone (`guard-metric`), checkpoints written in the background
    (`async-checkpoint`). Else the line is shown: move the work out of the loop, into a worker, or make it cheaper; what
    an operator computes on the processor, the device mostly can (`device=` where the tensor is made).

Thresholds
    REFILL_NS (100 µs): a stretch of Python this long is work of its own; issuing one operator takes 5 to 50 µs.
    An operator computes where it takes more than 1 ms while it launches nothing, in three steps of four and mostly,
    before the same one of those that it holds: once, or now and then, it is held up
    (diagnose/measure/lines/host_ops.py).
    MOST_STEPS (three in four): files in fewer steps are no part of every step, and `periodic-stall` looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import PurePath

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, drawn, format_ns

MOST_STEPS = 0.75

_HOST = "a recording with operators (torch.profiler, nsys profile --pytorch=autograd-nvtx), or a live run"


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Long stretches of Python while nothing else goes on, and what operators compute on the host meanwhile."""
    if measures.step_count == 0:
        return
    yield from _in_operators(measures)
    yield from _in_files(measures)
    stalls = measures.python_stalls
    gain = recoverable_ns(measures, stalls)
    if gain == 0:
        yield from _unknown(measures)
        return
    if not _host_is_known(measures):
        idle = format_ns(gain / measures.step_count)
        yield CannotTell("python-stall", f"what the host does while the device idles for {idle} of each step: {_HOST}")
        return
    places = measures.places(stalls, "python")
    who = "the device idles" if measures.has_device else "the training thread spends"
    at = f", most of it at {PurePath(places[0].file).name}:{places[0].line}" if places else ""
    yield Claim(
        summary=f"{who} {format_ns(gain / measures.step_count)} per step {_doing(measures, bool(places))}{at}",
        recoverable_ns=gain,
        claims=stalls,
        confidence=Confidence.MEASURED if not measures.blind and not _is_held_up(measures) else Confidence.BOUND,
        evidence=[
            Evidence("idle.python", measures.idle["python"].total_ns // measures.step_count, "ns"),
            Evidence("stretches per step", len(stalls) / measures.step_count, "count"),
        ],
        where=places,
        # Time in a library's Python is no metric of the program's, and an inference logs none of its training.
        fixers=("guard-metric",) if places and not measures.only_infers else (),
        confirm=_confirm(measures, bool(places)),
    )


def _unknown(measures: Measures) -> Iterator[CannotTell]:
    """Yield what it would take, where a recording does not tell what the host did."""
    trace = measures.trace
    if len(trace.ops) or len(trace.calls):
        return
    if not len(trace.samples):
        yield CannotTell("python-stall", "what the host did: operators, runtime calls or stack samples")
    elif not measures.has_device:
        yield CannotTell("python-stall", "operators of a traced step: samples do not tell them from Python")


def _in_operators(measures: Measures) -> Iterator[Claim]:
    """The operators that compute on the processor while the device has nothing to do."""
    computing = measures.host_computing
    gain = recoverable_ns(measures, computing.time) if measures.has_device else 0
    if gain == 0:
        return
    names = list(computing.by_op)
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    yield Claim(
        summary=f"the device idles {format_ns(gain / measures.step_count)} per step while the host computes on the "
        f"processor, in {names[0]}{others}",
        recoverable_ns=gain,
        claims=computing.time,
        evidence=[Evidence(name, time // measures.step_count, "ns") for name, time in computing.by_op.items()][:3],
        where=measures.places(computing.time),
        fixers=(),
    )


def _in_files(measures: Measures) -> Iterator[Claim]:
    """Files that are read or written in nearly every step, while the device has nothing to do."""
    files = measures.idle["io"]
    steps = int(np.count_nonzero(measures.per_step(files)))
    if steps < MOST_STEPS * measures.step_count:
        return
    gain = recoverable_ns(measures, files)
    if gain == 0:
        return
    places = measures.places(files)
    who = "the device idles" if measures.has_device else "the training thread spends"
    at = f", most of it at {PurePath(places[0].file).name}:{places[0].line}" if places else ""
    yield Claim(
        summary=f"{who} {format_ns(gain / measures.step_count)} per step "
        f"{'while the host reads or writes' if measures.has_device else 'reading or writing'} files{at}",
        recoverable_ns=gain,
        claims=files,
        evidence=[
            Evidence("idle.io", files.total_ns // measures.step_count, "ns"),
            Evidence("steps with files", steps, "count"),
        ],
        where=places,
        fixers=("async-checkpoint",),
    )


def _doing(measures: Measures, named: bool) -> str:
    """Return what the host does meanwhile, as far as the recording tells."""
    if len(measures.trace.frames) + len(measures.trace.samples):
        return "in Python outside the framework" if named else "in Python of libraries, between operators"
    return "while the host is outside the framework: Python, garbage collection, files or a lock, which is not recorded"


def _host_is_known(measures: Measures) -> bool:
    """Whether operators, Python calls or stacks were recorded: runtime calls alone do not tell Python from the rest."""
    trace = measures.trace
    return len(trace.ops) + len(trace.frames) + len(trace.samples) > 0


def _is_held_up(measures: Measures) -> bool:
    """Whether the thread stands still within operators for as long: no core to run on shows in both."""
    still, stalls = measures.stands_still & measures.counted, measures.python_stalls & measures.counted
    return still.total_ns >= stalls.total_ns > 0


def _confirm(measures: Measures, named: bool) -> str | None:
    if measures.blind:
        return "a recording of the device's work: it may have been busy meanwhile"
    if _is_held_up(measures):
        return "a run with a core to spare: the thread stands still within operators for longer than it is in Python"
    return None if named else "a live run (diagnose run) samples the stack and names the line"


_drawn = partial(drawn, repeat=4)
_FIRES = (
    _drawn(
        """
        host: olol           ol
        gpu :   kkkK           kkkk
        line:      pppppppppppp
        step:                      |
        """,
        kernels={"K": "other_kernel"},
        stacks={"p": [("train.py", 52, "moving_average")]},
    ),
    # Random numbers are drawn on the processor, in every step.
    _drawn(
        """
        host: nnnnnnnnnnnnol
        call: ffffffffffff
        gpu :              kkkkkkkk
        step:                      |
        """,
        ops={"n": "aten::normal_"},
        frames={"f": "train.py(12): augment"},
    ),
    # A checkpoint in every step.
    _drawn(
        """
        host: ol          ol
        ckpt:   wwwwwwwwww
        gpu :   kk          kk
        line:   xxxxxxxxxx
        step:                 |
        """,
        stacks={"x": [("torch/serialization.py", 800, "save"), ("train.py", 70, "main")]},
    ),
    # On a CPU alone: the thread is in no operator.
    _drawn(
        """
        host: oooooo      oooo
        line:       pppppp
        opt :                O
        """,
        stacks={"p": [("train.py", 52, "moving_average")]},
    ),
)

_SILENT = (
    # The host is in Python all the time, but the device never waits for it.
    drawn(
        """
        host: olol
        gpu :   kkkkkkkkkkKKKKKKKKKK
        step:                       |
        """,
        kernels={"K": "other_kernel"},
    ),
    # Short Python around every operator is the cost of launching, not a stall.
    _drawn(
        """
        host: ol ol ol ol ol
        gpu :   k  k  k  k  k
        step:                |
        """,
        unit_ns=10_000,
    ),
    # Operators are held up, each time another one: a lock, or no core to run on.
    _drawn(
        """
        host: xxxxxol       yyyyyol
        gpu :       kkkkkkkk      kkkkkkkk
        step:               |             |
        """,
        ops={"x": "aten::view", "y": "aten::empty"},
    ),
    # Checkpoints are written in every step, and the device has work meanwhile.
    _drawn(
        """
        host: olol
        ckpt:     wwwwwwww
        gpu :   kkkkkkkkkkKKKKKKKKKK
        step:                       |
        """,
        kernels={"K": "other_kernel"},
    ),
    # Runtime calls alone: nobody recorded what the host does between them.
    drawn(
        """
        host: l            l
        gpu :  kkkk         kkkk
        step:                   |
        """,
        repeat=4,
    ),
    # The device idles for its batch.
    _drawn("""
        load: wwwwwwww
        host:         l
        gpu :          kkkkkkkk
        step:                  |
    """),
)

RULE = Rule(
    "python-stall",
    check,
    fixers=("guard-metric", "async-checkpoint"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=40,
    symptom=Symptom.HOST,
)
