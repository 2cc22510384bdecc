"""Gradients travel in many small collectives, most of whose time is latency.

What it finds
    Gradient collectives within the backward pass, so many and so small that fewer, larger ones would take at most half
    of their time; or that the host, which issues each of them, comes late with the work of the device.

Why it costs
    A collective takes some ten microseconds however little it moves: to launch, to meet, to finish. Many small ones
    queue up one after another, and the optimizer waits for the last. To issue one takes the host some 30 µs, within the
    thread that runs the backward pass: where links are fast, that is what they cost.

What proves it
    The line through the fastest collectives of each size gives what each costs and what its bytes do; from it follows
    what buckets of 25 MiB would take. The recoverable time is that of the step with collectives shortened by as much,
    as the replay says: latency that the backward pass hides costs nothing.

What fixes it
    Larger buckets (`ddp-buckets`).

Thresholds
    25 MiB: DistributedDataParallel's default bucket. One half: what is to be gained below is less than what guessing
    a line through measured times may be wrong by. Eight: collectives per backward pass, below which merging them
    saves less than a tenth of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil

import numpy as np

from diagnose.measure.comm.collective_lines import issuing_of, issuing_ops
from diagnose.measure.comm.collectives import Phase
from diagnose.measure.comm.communication_waste import BUCKET_BYTES, Waste
from diagnose.measure.comm.ddp.least_exposure import least_exposed
from diagnose.measure.comm.faster_collectives import shortened
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import without_host_ns
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Measures,
    Place,
    Rule,
    Symptom,
    Trace,
    drawn,
    format_bytes,
    format_ns,
    format_share,
)
from diagnose.trace import Collective
from diagnose.trace.schema import Bool

MANY = 8  # collectives of a backward pass: merging fewer saves less than 0.1 ms


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Gradient collectives that latency makes long, or that hold up the host."""
    comm = measures.communication
    unsized = int((comm.gradients & (comm.size_bytes < 0)).sum())
    if unsized >= MANY * max(measures.step_count, 1):
        yield CannotTell("small-buckets", "the sizes of the collectives, as newer torch.profiler tells")
    found = _latency(measures) or _issuing(measures)
    if found is not None:
        yield found


def _latency(measures: Measures) -> Claim | None:
    """Return what they take on the links."""
    comm, exchange = measures.communication, measures.exchange
    rows, cost = exchange.waste == Waste.SMALL, exchange.cost_of_size
    if not rows.any() or cost is None or exchange.merged_share is None:
        return None
    less = shortened(measures, comm.transfer_ns, exchange.needed_ns)
    if less.gain_ns == 0:
        return None
    return Claim(
        summary=f"{_gradients_travel(measures, rows)}: {format_ns(cost[0])} of each is latency, buckets of 25 MiB "
        f"would take {format_share(exchange.merged_share)} of the time",
        recoverable_ns=less.gain_ns,
        claims=less.exposed,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("gradient collectives per step", int(rows.sum()) / measures.step_count, "count"),
            Evidence("their time per step", int(comm.transfer_ns[rows].sum()) // measures.step_count, "ns"),
            Evidence("latency of each", round(cost[0]), "ns"),
            Evidence("time merged over time now", round(exchange.merged_share, 4), "share"),
            *least_exposed(measures),
        ],
        where=_where(measures, rows),
        confirm=_CONFIRM,
        cut=less.cut,
    )


def _issuing(measures: Measures) -> Claim | None:
    """Return what they take the host, where the device waits for it in their backward passes."""
    comm, steps = measures.communication, measures.step_count
    rows = comm.gradients & (comm.phase == Phase.BACKWARD) & (comm.size_bytes >= 0)
    chosen = np.flatnonzero(rows)
    passes = max(1, len(np.unique(np.stack((comm.step, comm.round), axis=1)[rows], axis=0)))
    needed = passes * max(1, ceil(int(comm.size_bytes[rows].sum()) / BUCKET_BYTES / passes))
    if not measures.has_device or measures.replay.ran_ahead or len(chosen) < MANY * needed:
        return None
    if (measures.issuing_ns - measures.recording_ns).sum() < measures.busy_ns.sum():
        return None  # the host could be ahead
    host = issuing_ops(measures, chosen[np.arange(len(chosen)) % (len(chosen) // needed) > 0])
    claims = measures.issue_gaps & issuing_of(measures, rows)
    gain = without_host_ns(measures, host, claims)
    if gain == 0:
        return None
    each = host.total_ns // max(len(chosen) - needed, 1)
    return Claim(
        summary=f"{_gradients_travel(measures, rows)}: issuing them keeps the host from the backward pass, for which "
        f"the device waits; buckets of 25 MiB would be {needed / steps:.0f}",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("gradient collectives per step", len(chosen) / steps, "count"),
            Evidence("in buckets of 25 MiB", needed / steps, "count"),
            Evidence("host time to issue one, as recorded", each, "ns"),
            *least_exposed(measures),
        ],
        where=_where(measures, rows),
        confirm=_CONFIRM,
        cut=Cut(host=host),
    )


_CONFIRM = "a trial with the default buckets"


def _gradients_travel(measures: Measures, rows: Bool) -> str:
    count = int(rows.sum())
    each = format_bytes(int(measures.communication.size_bytes[rows].sum()) / count)
    return f"gradients travel in {count / measures.step_count:.0f} collectives per step, {each} each on average"


def _where(measures: Measures, rows: Bool) -> Sequence[Place]:
    sites = [site for site in measures.trace.sites if site.kind == "DistributedDataParallel"]
    written = [Place.at(site) for site in sites]
    return written or measures.places(issuing_of(measures, rows))


_KERNELS = {"b": "gemm", "B": "other_gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
_COMMS = {
    "g": Collective("all_reduce", 16_000, 2, "default_pg"),
    "G": Collective("all_reduce", 1_048_576, 2, "default_pg"),
}
_ALIKE = {"g": Collective("all_reduce", 131_072, 2, "default_pg")}


def _issued(picture: str) -> Trace:
    """Steps of some hundred microseconds, in which the host is seen to issue each of many collectives."""
    issuing = {"a": "c10d::allreduce_"}
    return drawn(picture, repeat=4, unit_ns=10_000, kernels=_KERNELS, ops=issuing, comms=_ALIKE)


_drawn = partial(drawn, repeat=4, kernels=_KERNELS, comms=_COMMS)
_FIRES = (
    _drawn("""
        gpu   : kkkkbbbb            x
        gpu 20:      gGGgGGgGGgGGgGG
        bwd   :     BBBBBBBBBBBBBBBB
        opt   :                     O
    """),
    # Short on the links; the thread that runs the backward pass issues each of them.
    _issued(
        """
        host 1: olalolalolalolalolalolalolalolal
        host  :                                   l
        gpu   :   b   b   b   b   b   b   b   b      x
        gpu 20:     g   g   g   g   g   g   g   g
        bwd   : BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB
        opt   :                                   O
        """
    ),
)

_SILENT = (
    # As many, issued by a host that is ahead.
    _issued(
        """
        host 1: olalolalolalolalolalolalolalolal
        host  :                                   l
        gpu   :   bbbbbbBBBBBBbbbbbbBBBBBBbbbbbbBBBBBBbbbbbbBBBBBB   x
        gpu 20:     g   g   g   g   g   g   g   g
        bwd   : BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB
        opt   :                                                    O
        """
    ),
    # As many, in three backward passes: no bucket spans two.
    _issued(
        """
        host 1: olalolalolal.olalolalolal.olalolalolal
        host  :                                       l
        gpu   :   b   b   b    b   b   b    b   b   b    x
        gpu 20:     g   g   g    g   g   g    g   g   g
        bwd   : BBBBBBBBBBBB.BBBBBBBBBBBB.BBBBBBBBBBBB
        opt   :                                         O
        """
    ),
    # As many, issued after the backward pass, which none of them holds up.
    _issued(
        """
        host 1: ol
        host  :   alalalalalalalalal                 l
        gpu   :  b                                     x
        gpu 20:    g g g g g g g g g
        bwd   : BB
        opt   :                                     O
        """
    ),
    # As many, as small, under compute that lasts longer.
    _drawn("""
        gpu   : kkkkbbbbbbbbbbbbbbbbbx
        gpu 20:      gGGgGGgGGgGGgGG
        bwd   :     BBBBBBBBBBBBBBBBB
        opt   :                      O
    """),
    # Few, and exposed because there is much to move.
    drawn(
        """
        gpu   : kkkkbbbb          x
        gpu 20:      cccccgggggggg
        bwd   :     BBBBBB
        opt   :                   O
        """,
        repeat=4,
        kernels=_KERNELS,
        comms={
            "c": Collective("all_reduce", 25 << 20, 2, "default_pg"),
            "g": Collective("all_reduce", 40 << 20, 2, "default_pg"),
        },
    ),
)

RULE = Rule(
    "small-buckets", check, fixers=("ddp-buckets",), fires=_FIRES, silent=_SILENT, nearness=40, symptom=Symptom.RANKS
)
