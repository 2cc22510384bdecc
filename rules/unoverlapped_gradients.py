"""Gradients are reduced over the ranks after the backward pass, while nothing computes.

What it finds
    All-reduces or reduce-scatters of gradients of which not even the first begins before the backward pass is over: a
    loop over the parameters after `backward()`, one flattened tensor, or buckets so large that there is one only.

Why it costs
    The gradients of the last layers are ready when the backward pass has just begun. Reduced then, they travel while
    the device computes those of the layers before; reduced afterwards, the device waits for every byte.

What proves it
    The collectives' beginning against the compute that the backward pass issued, and the time from the first to the
    last of them in which nothing is computed. Waiting for other ranks at the first one is not counted. The recoverable
    time is what is left if they ran beside the backward pass: all but the gradients that become ready last, what does
    not fit beside it, what computing beside them loses, and what copying gradients out of buckets takes. Where each
    parameter is a collective of its own, this includes their latency. An upper bound: a device at its power limit
    computes more slowly when it no longer rests while gradients travel.

What fixes it
    `DistributedDataParallel` (`use-ddp`), or smaller buckets (`ddp-buckets`).

Thresholds
    LAST (a quarter, and at least 25 MiB): the bytes that are reduced when nothing is left to compute, however they are
    arranged. 25 MiB are the default bucket of DistributedDataParallel, a quarter is about what an embedding is of a
    small language model, whose gradient is ready last.
    COPIES (three quarters): the part of a device's memory bandwidth that plain copies reach; an H200 copies buckets
    back into gradients at 3.5 of 4.8 TB/s. What a hidden transfer takes from compute is in
    diagnose/measure/comm/overheads.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.comm.collective_lines import issuing_of
from diagnose.measure.comm.communication_waste import BUCKET_BYTES
from diagnose.measure.comm.faster_collectives import shortened
from diagnose.measure.comm.overheads import held_share
from diagnose.measure.replay.replay import Cut
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Measures, Rule, Symptom, drawn, format_bytes
from diagnose.trace.schema import Int64

LAST = 0.25
COPIES = 0.75


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Rounds of gradients that begin after the backward pass."""
    comm = measures.communication
    if not len(comm) or measures.only_infers:
        return
    if not len(measures.backward_passes):
        yield CannotTell("unoverlapped-gradients", "the operators of the backward pass, beside the collectives")
        return
    late = measures.late_gradients
    exposed = late.stretches
    wanted = measures.per_step(exposed)
    if not late.rows.any() or not wanted.any():
        return
    moved, transfer, ready_last = _per_step(measures)
    hideable = np.clip(transfer - ready_last, 0, late.hidden_ns)
    beside = float(held_share(measures)[late.rows].max())
    left = np.minimum(transfer - hideable + beside * hideable + _copied_back_ns(measures, moved), wanted)
    part = float(left.sum() / max(int(wanted.sum()), 1))
    most = int(wanted.sum() - left.sum())
    whole = shortened(measures, comm.transfer_ns * late.rows, np.zeros(len(comm), np.int64))
    between = exposed - measures.busy
    gain = min(most, round((whole.gain_ns + between.total_ns) * (1 - part)))
    if gain <= 0:
        return
    steps, count = measures.step_count, int(late.rows.sum())
    size = f"{format_bytes(int(moved.sum()) / steps)} of " if moved.any() else ""
    yield Claim(
        summary=f"{size}gradients are reduced after the backward pass, in {count / steps:.0f} "
        f"collective{'s' if count > steps else ''} per step: {of_traced_step(measures, exposed)} "
        f"in which nothing computes",
        recoverable_ns=gain,
        claims=exposed,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("exposed time of late gradients", int(wanted.sum()) // steps, "ns", _work(measures, late.rows)),
            Evidence("collectives per step", count / steps, "count"),
            Evidence("compute of the backward pass", int(late.hidden_ns.sum()) // steps, "ns"),
        ],
        where=measures.places(issuing_of(measures, late.rows)),
        confirm="a trial with DistributedDataParallel",
        cut=None if whole.cut is None or whole.cut.scale is None else Cut(scale=_partly(whole.cut.scale, part)),
    )


def _per_step(measures: Measures) -> tuple[Int64, Int64, Int64]:
    """Per step: bytes, the time of their transfer in whole buckets, and the part of it for what is ready last."""
    comm, late = measures.communication, measures.late_gradients
    moved, transfer = np.zeros(measures.step_count, np.int64), np.zeros(measures.step_count, np.int64)
    np.add.at(moved, comm.step[late.rows], np.maximum(comm.size_bytes[late.rows], 0))
    np.add.at(transfer, comm.step[late.rows], comm.transfer_ns[late.rows])
    cost = measures.exchange.cost_of_size
    if cost is not None:
        merged = np.ceil(moved / BUCKET_BYTES) * cost[0] + moved * cost[1]
        transfer = np.where(moved > 0, np.minimum(transfer, merged), transfer).astype(np.int64)
    share = np.where(moved > 0, np.clip(BUCKET_BYTES / np.maximum(moved, 1), LAST, 1.0), LAST)
    return moved, transfer, (share * transfer).astype(np.int64)


def _copied_back_ns(measures: Measures, moved: Int64) -> np.typing.NDArray[np.float64]:
    """Per step, what copying gradients of so many bytes out of buckets takes; 0 where the device is not known."""
    rate = measures.ceilings.bytes_per_s if measures.ceilings else np.inf
    return np.asarray(2 * moved / (COPIES * rate) * 1e9, np.float64)


def _partly(scale: np.typing.NDArray[np.float64], part: float) -> np.typing.NDArray[np.float64]:
    return scale + (1 - scale) * part


def _work(measures: Measures, rows: np.typing.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(measures.communication.row[rows].tolist()) if measures.has_device else ()


_drawn = partial(drawn, repeat=4, kernels={"b": "gemm"})
_FIRES = (
    # One collective a parameter, issued after the backward pass.
    _drawn("""
        gpu   : kkkbkbkbk
        gpu 20:          cccccc
        bwd   :    BBBBBB
        opt   :                O
    """),
)

_SILENT = (
    # Reduced while the backward pass goes on: only the last one is exposed.
    _drawn("""
        gpu   : kkkbkbkbk
        gpu 20:     ccccc cc
        bwd   :    BBBBBB
        opt   :            O
    """),
    # A model split over ranks reduces activations in the forward pass, and in the backward pass.
    _drawn("""
        gpu   : kkk kb kbk
        gpu 20:    c  c   c
        bwd   :     BBBBBB
        opt   :            O
    """),
)

RULE = Rule(
    "unoverlapped-gradients",
    check,
    fixers=("use-ddp", "ddp-buckets"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=40,
    symptom=Symptom.RANKS,
)
