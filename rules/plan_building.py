"""Operators stand still on the host whenever a shape is new, while the device waits.

What it finds
    Calls of an operator that take milliseconds on the host the first time it sees a shape, and microseconds ever after,
    in a program whose shapes keep changing: cuDNN builds plans for attention and convolutions, cuBLASLt, Triton and
    TunableOp try what is fastest.

Why it costs
    Nothing is launched meanwhile. cuDNN's attention takes some 30 ms for each new length of a batch, forward, and as
    much backward: as long as a whole step.

What proves it
    The idle time of the device within first calls of a shape that take far longer than calls with a shape that was seen
    before, in several of the counted steps. What only the first step does is a start that is paid once. Compiling is
    another finding, `recompiling`.

What fixes it
    Lengths padded to a few sizes (`pad_to_multiple_of=64` of a collator), so that shapes come again; a backend that
    builds no plans: `with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`;
    `torch.backends.cudnn.benchmark = False` where the search for convolutions is what takes long.

Thresholds
    LONG_NS, TIMES: see `diagnose.measure.lines.new_shapes`.
    STEPS 2: counted steps in which shapes must be new; fewer may be the last of a start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import recoverable_ns
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_ns,
    format_times,
)

STEPS = 2


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """The idle time within first calls of a shape."""
    if not measures.has_device:
        yield CannotTell("plan-building", "a recording of the device's work")
        return
    found = measures.new_shapes
    if len(np.unique(found.step)) < STEPS:
        return
    stalls = found.stalls(measures)
    gained = recoverable_ns(measures, stalls)
    if gained == 0:
        return
    trace, steps = measures.trace, measures.step_count
    by_name: Counter[str] = Counter()
    for op, took in zip(found.ops.tolist(), found.took_ns.tolist(), strict=True):
        by_name[trace.names[trace.ops.name[op]]] += took
    words = [name for name, _ in by_name.most_common(2)]
    yield Claim(
        summary=f"{' and '.join(words)} {'stand' if len(words) > 1 else 'stands'} still for "
        f"{format_ns(float(np.median(found.took_ns)))} where a shape is new, "
        f"{format_times(len(found) / steps)} per step; with a shape seen before "
        f"{'they take' if len(words) > 1 else 'it takes'} {format_ns(float(np.median(found.usual_ns)))}",
        recoverable_ns=gained,
        claims=stalls,
        confidence=Confidence.BOUND,
        evidence=[
            *(Evidence(f"first calls of {name}", took // steps, "ns") for name, took in by_name.most_common(4)),
            Evidence("idle meanwhile", stalls.total_ns // steps, "ns"),
            Evidence("steps with new shapes", len(np.unique(found.step)) / steps, "share"),
        ],
        where=places_of_ops(measures, found.ops),
        confirm="a trial with lengths padded to a few sizes, or with another backend of the operator",
    )


_PAIRS = {"A": "B", "C": "D", "E": "F", "I": "J"}
"""Letters of the first layer of a step and of its other layers."""
_SHAPES = {
    letter: (f"[[8,12,{128 * length},64]]", '["c10::BFloat16"]')
    for length, pair in enumerate(_PAIRS.items(), start=1)
    for letter in pair
}
_OPS = dict.fromkeys(_SHAPES, "aten::_cudnn_attention_forward")


def _steps(first: str, letters: str) -> str:
    """Steps whose first layers have these letters, with first calls as wide as `first`; x stands for the letter."""
    host = "".join(f"{first.replace('x', one)}l{_PAIRS[one]}l.{_PAIRS[one]}l.ss" for one in letters)
    width = len(host) // len(letters)
    device = ("." * len(first) + ".k.k..k").ljust(width, ".")
    mark = "|".rjust(width)
    return f"""
        host: {host}
        gpu : {len(letters) * device}
        step: {len(letters) * mark}
    """


_FIRES = (
    # Every step has a length of its own: the first layer builds a plan, the others have it.
    drawn(_steps(29 * "x", "ACEI"), ops=_OPS, shapes=_SHAPES),
)
_SILENT = (
    # Operators that take long, always: they build nothing.
    drawn(_steps(29 * "x", "AAAA"), ops=_OPS, shapes=_SHAPES),
    # New shapes, and nothing to build: calls are as short as ever.
    drawn(_steps(28 * "." + "x", "ACEI"), ops=_OPS, shapes=_SHAPES),
)

RULE = Rule("plan-building", check, fires=_FIRES, silent=_SILENT, nearness=20, symptom=Symptom.HOST)
