"""Sharded parameters are gathered again in the backward pass, after the forward pass threw them away.

What it finds
    All-gathers in or between backward passes of the sizes and group of those in the forward pass of the same step.

Why it costs
    FSDP gathers a layer's parameters before its forward pass and, unless told otherwise, frees them after it, so that
    the backward pass gathers them again: half more bytes than need travel. Where memory is short that is the point of
    it; where it is not, nothing is gained. Gathered beside compute they still cost: shards are copied together and
    apart again, and NCCL's kernels take multiprocessors and memory bandwidth from the compute.

What proves it
    The collectives by size, group and phase. The recoverable time is that of the step without the repeated ones, the
    copies around them, and what they take from the compute beside them, as the replay says. Where the recording knows
    the device's memory and its peak, a job that has no room for the gathered parameters is left alone; where it does
    not, whether there is room remains to be seen.

What fixes it
    `reshard_after_forward=False` for as many layers as fit (`fsdp-keep`); with gradient accumulation, resharding
    after the last micro-step alone.

Thresholds
    ROOM (0.9): the part of the device's memory that may be in use at the peak; the allocator needs the rest for
    fragmentation. What a collective takes from compute is in diagnose/measure/comm/overheads.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.comm.collective_lines import issuing_of
from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.fsdp_resharding import worth_keeping
from diagnose.measure.comm.redundant_collectives import without_collectives
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
)
from diagnose.trace import Collective
from diagnose.trace.schema import Bool

ROOM = 0.9


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """All-gathers of what was gathered before."""
    comm = measures.communication
    rows = measures.exchange.waste == Waste.REGATHERED
    if measures.only_infers:
        return
    if (comm.kind == "all_gather").any() and not len(measures.backward_passes):
        yield CannotTell("regathering-parameters", "the operators of the backward passes, beside the collectives")
    rows = rows & _has_room(measures, rows)
    if not rows.any():
        return
    gone = without_collectives(measures, rows)
    if gone.gain_ns == 0:
        return
    steps, facts = measures.step_count, measures.trace.facts
    moved = int(comm.size_bytes[rows].sum()) // steps
    known = facts.peak_memory_bytes is not None and facts.device_memory_bytes is not None
    sites = [site for site in measures.trace.sites if site.kind in ("fully_shard", "FSDP")]
    yield Claim(
        summary=f"{format_bytes(moved)} of parameters are gathered again after the forward pass of each step, in "
        f"{int(rows.sum()) / steps:.0f} collectives: {format_ns(gone.exposed.total_ns / steps)} per step are exposed",
        recoverable_ns=gone.gain_ns,
        claims=gone.claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("gathered again per step", moved, "bytes"),
            Evidence("exposed time of these", gone.exposed.total_ns // steps, "ns"),
            *gone.beside(steps, "copies in and out for these"),
            *([Evidence("peak memory", facts.peak_memory_bytes or 0, "bytes")] if known else []),
            *worth_keeping(measures),
        ],
        where=[Place.at(site) for site in sites] or measures.places(issuing_of(measures, rows)),
        confirm="a trial with reshard_after_forward=False" + ("" if known else ", if there is memory to keep them"),
        cut=gone.cut,
    )


def _has_room(measures: Measures, rows: Bool) -> Bool:
    """Return which parameters that are gathered again are not known to be too large to stay beside the peak, all of one
    pass together.

    What is too large is passed over, as where the fixer chooses.
    """
    facts, comm = measures.trace.facts, measures.communication
    found = rows.copy()
    if facts.peak_memory_bytes is None or facts.device_memory_bytes is None:
        return found
    room = ROOM * facts.device_memory_bytes - facts.peak_memory_bytes
    places = np.flatnonzero(rows)
    for step, turn in {(int(comm.step[row]), int(comm.round[row])) for row in places}:
        of_pass = places[(comm.step[places] == step) & (comm.round[places] == turn)]
        left = room
        for row in of_pass[np.argsort(comm.issued_ns[of_pass], kind="stable")].tolist():
            found[row] = comm.size_bytes[row] <= left
            left -= int(comm.size_bytes[row]) if found[row] else 0
    return found


_COMMS = {
    "a": Collective("all_gather", 64 << 20, 2, "mesh_fsdp"),
    "A": Collective("all_gather", 48 << 20, 2, "mesh_fsdp"),
    "r": Collective("reduce_scatter", 64 << 20, 2, "mesh_fsdp"),
}
_KERNELS = {"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
_AGAIN = """
    gpu   :    k k      bb   bb  x
    gpu 20: aaa AA  AAAA  aaa  rr
    bwd   :         BBBBBBBBBBBBB
    opt   :                      O
    """

_drawn = partial(drawn, repeat=4, kernels=_KERNELS, comms=_COMMS)
_FIRES = (
    _drawn(_AGAIN),
    # Room for one of the two.
    _drawn(_AGAIN, facts=Facts(peak_memory_bytes=840 << 20, device_memory_bytes=1000 << 20)),
    # No room for the large one that comes first, but for the other.
    drawn(
        """
        gpu   :    k k      bb   bb  x
        gpu 20: aaa LL  LLLL  aaa  rr
        bwd   :         BBBBBBBBBBBBB
        opt   :                      O
        """,
        repeat=4,
        kernels=_KERNELS,
        comms=_COMMS | {"L": Collective("all_gather", 512 << 20, 2, "mesh_fsdp")},
        facts=Facts(peak_memory_bytes=800 << 20, device_memory_bytes=1000 << 20),
    ),
)

_SILENT = (
    # Kept after the forward pass.
    _drawn("""
        gpu   :    kk  kbbbbbb  x
        gpu 20: aaa AA       rrr
        bwd   :         BBBBBBB
        opt   :                 O
    """),
    # Gathered again, beside compute.
    _drawn("""
        gpu   :    kkkbbbbbbbbb  x
        gpu 20: aaa AAAA aaa  rrr
        bwd   :       BBBBBBBBBBB
        opt   :                  O
    """),
    # No room to keep them.
    _drawn(_AGAIN, facts=Facts(peak_memory_bytes=139 << 30, device_memory_bytes=140 << 30)),
)

RULE = Rule(
    "regathering-parameters",
    check,
    fixers=("fsdp-keep",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=35,
    symptom=Symptom.RANKS,
)
