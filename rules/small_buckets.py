"""Gradients travel in many small collectives, most of whose time is latency.

What it finds
    Gradient collectives within the backward pass, so many and so small that fewer, larger ones would take at most half
    of their time.

Why it costs
    A collective takes some ten microseconds however little it moves: to launch, to meet, to finish. Many small ones
    queue up one after another, and the optimizer waits for the last.

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

from collections.abc import Iterator

from diagnose.rule import (
    CannotTell,
    Claim,
    Collective,
    Confidence,
    Evidence,
    Measures,
    Place,
    Rule,
    Waste,
    drawn,
    format_bytes,
    format_ns,
    format_share,
    issuing_of,
    planned_buckets,
    shortened,
)

MANY = 8


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Gradient collectives that latency makes long."""
    comm, exchange = measures.communication, measures.exchange
    rows = exchange.waste == Waste.SMALL
    unsized = int((comm.gradients & (comm.size_bytes < 0)).sum())
    if unsized >= MANY * max(measures.step_count, 1):
        yield CannotTell("small-buckets", "the sizes of the collectives, as newer torch.profiler tells")
    cost = exchange.cost_of_size
    if not rows.any() or cost is None or exchange.merged_share is None:
        return
    less = shortened(measures, comm.transfer_ns, exchange.needed_ns)
    if less.gain_ns == 0:
        return
    steps, count, moved = measures.step_count, int(rows.sum()), int(comm.size_bytes[rows].sum())
    sites = [site for site in measures.trace.sites if site.kind == "DistributedDataParallel"]
    yield Claim(
        summary=f"gradients travel in {count / steps:.0f} collectives per step, {format_bytes(moved / count)} each on "
        f"average: {format_ns(cost[0])} of each is latency, buckets of 25 MiB would take "
        f"{format_share(exchange.merged_share)} of the time",
        recoverable_ns=less.gain_ns,
        claims=less.exposed,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("gradient collectives per step", count / steps, "count"),
            Evidence("their time per step", int(comm.transfer_ns[rows].sum()) // steps, "ns"),
            Evidence("latency of each", round(cost[0]), "ns"),
            Evidence("time merged over time now", round(exchange.merged_share, 4), "share"),
            *planned_buckets(measures),
        ],
        where=[Place(site.file, site.line, function=site.function) for site in sites]
        or measures.places(issuing_of(measures, rows)),
        confirm="a trial with the default buckets",
        cut=less.cut,
    )


_COMMS = {
    "g": Collective("all_reduce", 16_000, 2, "default_pg"),
    "G": Collective("all_reduce", 1_048_576, 2, "default_pg"),
}

_FIRES = (
    drawn(
        """
        gpu   : kkkkbbbb            x
        gpu 20:      gGGgGGgGGgGGgGG
        bwd   :     BBBBBBBBBBBBBBBB
        opt   :                     O
        """,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms=_COMMS,
    ),
)

_SILENT = (
    # As many, as small, under compute that lasts longer.
    drawn(
        """
        gpu   : kkkkbbbbbbbbbbbbbbbbbx
        gpu 20:      gGGgGGgGGgGGgGG
        bwd   :     BBBBBBBBBBBBBBBBB
        opt   :                      O
        """,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms=_COMMS,
    ),
    # Few, and exposed because there is much to move.
    drawn(
        """
        gpu   : kkkkbbbb          x
        gpu 20:      cccccgggggggg
        bwd   :     BBBBBB
        opt   :                   O
        """,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms={
            "c": Collective("all_reduce", 25 << 20, 2, "default_pg"),
            "g": Collective("all_reduce", 40 << 20, 2, "default_pg"),
        },
    ),
)

RULE = Rule("small-buckets", check, fixers=("ddp-buckets",), fires=_FIRES, silent=_SILENT, nearness=40)
