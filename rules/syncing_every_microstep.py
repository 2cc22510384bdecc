"""Gradients are reduced over the ranks in every micro-step of an accumulation, though only the last sum is used.

What it finds
    Several backward passes for one optimizer step, each of which reduces the same gradients over the ranks.

Why it costs
    The optimizer needs the sum over micro-steps and ranks. Sums commute: gradients may be accumulated on each rank and
    reduced once, with the last micro-step. Reduced in each of k, k times the bytes travel. Hidden behind the backward
    pass they still cost: DistributedDataParallel copies all gradients into buckets and back each time, and NCCL's
    kernels take multiprocessors and memory bandwidth from the compute beside them.

What proves it
    Rounds of gradient collectives of equal bytes within a step that has fewer optimizer steps than rounds. The
    recoverable time is that of the step without all rounds but the last, their copies, and what they take from the
    compute beside them, as the replay says.

What fixes it
    `no_sync()` of DistributedDataParallel, `set_requires_gradient_sync(False)` of FSDP (`no-sync`). FSDP then keeps
    whole gradients on every rank: it takes memory.

Thresholds
    1 %: bytes of rounds of the same gradients may differ by so much (statistics that travel along). What a collective
    takes from compute is in diagnose/measure/comm/overheads.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.measure.comm.collective_lines import issuing_of
from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.redundant_collectives import without_collectives
from diagnose.rule import CannotTell, Claim, Evidence, Measures, Rule, Symptom, drawn, format_bytes, format_ns
from diagnose.trace import Collective


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """All rounds of gradients but the last of each step."""
    comm = measures.communication
    if measures.only_infers:
        return
    if len(comm) and not len(measures.backward_passes):
        yield CannotTell("syncing-every-microstep", "the operators of the backward passes, beside the collectives")
        return
    rows = measures.exchange.waste == Waste.REPEATED
    if not rows.any():
        return
    gone = without_collectives(measures, rows)
    if gone.gain_ns == 0:
        return
    steps = measures.step_count
    rounds = len(np.unique(np.stack((comm.step, comm.round), axis=1)[rows], axis=0)) / steps
    moved = int(comm.size_bytes[rows].sum()) / steps
    yield Claim(
        summary=f"gradients are reduced in {rounds + 1:.0f} micro-steps of each step: {rounds:.0f} times too often, "
        f"{format_bytes(moved)} that need not travel, and {format_ns(gone.exposed.total_ns / steps)} per step that "
        "nothing hides",
        recoverable_ns=gone.gain_ns,
        claims=gone.claims,
        evidence=[
            Evidence("rounds of gradients per step", rounds + 1, "count"),
            Evidence("reduced needlessly per step", round(moved), "bytes"),
            Evidence("exposed time of these", gone.exposed.total_ns // steps, "ns"),
            *gone.beside(steps, "copies into buckets and back for these"),
        ],
        where=measures.places(issuing_of(measures, rows)),
        cut=gone.cut,
    )


_GRADIENTS = {"g": Collective("all_reduce", 64 << 20, 2, "default_pg")}

_FIRES = (
    drawn(
        """
        gpu   : kkkbbb   kkkbbb   x
        gpu 20:      gggg     gggg
        bwd   :    BBB      BBB
        opt   :                   O
        """,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms=_GRADIENTS,
    ),
)

_SILENT = (
    # Reduced with the last micro-step alone.
    drawn(
        """
        gpu   : kkkbbbkkkbbb   x
        gpu 20:           gggg
        bwd   :    BBB   BBB
        opt   :                O
        """,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms=_GRADIENTS,
    ),
    # Two models, each with a backward pass and an optimizer of its own.
    drawn(
        """
        gpu   : kkkbbb   xkkkbbb   x
        gpu 20:      gggg      gggg
        bwd   :    BBB       BBB
        opt   :         OO         O
        load  : w
        """,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms=_GRADIENTS,
    ),
)

RULE = Rule(
    "syncing-every-microstep",
    check,
    fixers=("no-sync",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=30,
    symptom=Symptom.RANKS,
)
