"""The device waits for collectives that nothing hides.

What it finds
    Collectives on the path of the step: nothing is computed beside them, and the step would end sooner without them.
    What has a cause of its own is left to it: gradients reduced after the backward pass (`unoverlapped-gradients`) or
    in every micro-step (`syncing-every-microstep`), parameters gathered again (`regathering-parameters`), small
    collectives (`small-buckets`), a slow link (`slow-link`), a late rank (`straggler`).

Why it costs
    A device that waits for a collective computes nothing. Beside compute, a collective costs a fraction of that.

What proves it
    The time of collectives outside compute, and the replay of the step without them. Two things are not counted,
    because no better plan removes them: the end of each round of gradients, which become ready when nothing is left
    to compute (a quarter of the round at most, or 25 MiB where that is more), and the first parameters that FSDP
    gathers in a step; of large ones that is at most the time at a tenth of the link's rate (`slow-link`), where the
    link is known: what they take beyond it is waiting for a late rank, or a link that is not in use.
    Nor is waiting for other ranks: by one rank's recording that is what a collective takes longer than the fastest of
    its kind, size and group; by several, what it takes longer than on the rank that came last. The rest is an upper
    bound: it goes if the collective is hidden or not needed.

What fixes it
    Not doing it (replicas that start equal stay equal), doing it beside compute (`async_op=True`, larger or smaller
    buckets, prefetching), moving fewer bytes (bfloat16), or accumulating gradients over more micro-steps.

Thresholds
    None of its own; what it subtracts is in diagnose/measure/comm/communication_waste.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.comm.collective_lines import places_by_cost
from diagnose.measure.comm.ddp.least_exposure import least_exposed
from diagnose.measure.comm.faster_collectives import shortened
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_count,
)
from diagnose.trace import Collective
from diagnose.trace.schema import Bool, Int64

_GB = 1e9  # bytes: a unit
_FIXERS = {
    "all_reduce": ("ddp-buckets", "bf16-gradients", "powersgd-gradients"),
    "broadcast": ("drop-broadcast", "no-buffer-broadcast"),
}


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Exposed collectives, without what is inherent, waiting, or another rule's."""
    comm, exchange = measures.communication, measures.exchange
    if not len(comm):
        return
    if not measures.compute.total_ns:
        yield CannotTell("exposed-communication", "the compute that collectives could hide behind, besides collectives")
        return
    needed = np.where(measures.late_gradients.rows, 0, exchange.needed_ns)
    less = shortened(measures, needed, np.minimum(exchange.inherent_ns, needed))
    if less.gain_ns == 0:
        return
    steps = measures.step_count
    exposed = _exposed(measures, needed)
    kinds, number = np.unique(measures.communication.kind, return_inverse=True)
    spent = np.bincount(number.reshape(-1), weights=exposed, minlength=len(kinds)).astype(np.int64)
    order = np.argsort(-spent, kind="stable")[:3]
    longest = [(str(kinds[at]), int(spent[at])) for at in order.tolist() if spent[at] > 0]
    rows = exposed > 0
    inherent = int(np.minimum(exchange.inherent_ns, needed).sum()) // steps
    slow, fast = _rate(measures)
    waited = round((comm.duration_ns - comm.transfer_ns)[rows].sum() / steps)
    yield Claim(
        summary=f"{'the device' if measures.has_device else 'the training thread'} computes nothing "
        f"for {of_traced_step(measures, less.exposed)} "
        f"while it communicates: {_described(measures, longest, rows)}",
        recoverable_ns=less.gain_ns,
        claims=less.exposed,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("exposed communication", measures.accounting.exposed_comm // steps, "ns"),
            *(
                Evidence(f"of it, {kind.replace('_', '-') or 'of unknown kind'}", time // steps, "ns")
                for kind, time in longest
            ),
            *([Evidence("of it, what no plan hides", inherent, "ns")] * (inherent > 0)),
            *([Evidence("waiting for other ranks, as far as one rank can tell", waited, "ns")] * (waited > 0)),
            Evidence("exposed collectives per step", int(rows.sum()) / steps, "count", _rows(measures, exposed)),
            *(least_exposed(measures) if longest and longest[0][0] == "all_reduce" else ()),
            *slow,
        ],
        where=places_by_cost(measures, exposed),
        fixers=_FIXERS.get(longest[0][0], ()) if longest else (),
        ruled_out=fast,
        confirm="a trial without these collectives, or the recordings of all ranks: a late one makes all others wait",
        cut=less.cut,
    )


def _exposed(measures: Measures, needed: Int64) -> Int64:
    """Per collective, how much of its transfer nothing hides."""
    comm = measures.communication
    begin = comm.end_ns - np.minimum(needed, comm.duration_ns)
    return np.asarray(comm.end_ns - begin - measures.compute.covered(begin, comm.end_ns), np.int64)


def _described(measures: Measures, longest: list[tuple[str, int]], rows: Bool) -> str:
    """Kinds with their number and size, the costliest first."""
    comm, steps, words = measures.communication, measures.step_count, []
    for kind, _ in longest[:2]:
        mine = rows & (comm.kind == kind)
        size = int(np.maximum(comm.size_bytes[mine], 0).sum()) / steps
        name = kind.replace("_", "-") or "collective"
        words.append(
            f"{format_count(int(mine.sum()) / steps)} × {name}{f' of {format_bytes(size)} in all' if size else ''}"
        )
    return " and ".join(words)


def _rate(measures: Measures) -> tuple[list[Evidence], tuple[str, ...]]:
    """Return the rate of the fastest large collective beside that of the link as evidence where it is far below, and as
    what rules a slow link out where it is not; neither where one of them is unknown."""
    rate, link = measures.exchange.bus_bytes_per_s, measures.exchange.link
    if rate is None or link is None:
        return [], ()
    reached, whole = round(rate / _GB, 2), link.bytes_per_s / _GB
    if measures.exchange.uses_link:
        return [], (f"a slow link: the fastest large collective moves {reached:g} GB/s over the bus, {link.name} "
                    f"{whole:g}",)  # fmt: skip
    return [
        Evidence("bus bandwidth of the fastest large collective", reached, "GB/s"),
        Evidence(f"one way over {link.name}", whole, "GB/s"),
    ], ()


def _rows(measures: Measures, exposed: Int64) -> tuple[int, ...]:
    if not measures.has_device:
        return ()
    return tuple(measures.communication.row[exposed > 0].tolist())


_KERNELS = {"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}

_drawn = partial(drawn, repeat=4, kernels=_KERNELS)
_FIRES = (
    # All weights are sent to all ranks after every step.
    _drawn(
        """
        gpu   : kkkbbbbb       x
        gpu 20:     gg  gwwwwww
        bwd   :    BBBBB
        opt   :                O
        """,
        comms={
            "g": Collective("all_reduce", 25 << 20, 2, "default_pg"),
            "w": Collective("broadcast", 96 << 20, 2, "default_pg"),
        },
    ),
    # All gradients are 21 MiB, and take 13 ms: no link that is in use takes that long for the last ones.
    _drawn(
        """
        gpu   : kkkbbbb            x
        gpu 20:      gggggghhhhhhhh
        bwd   :    BBBB
        opt   :                    O
        """,
        comms={
            "g": Collective("all_reduce", 5 << 20, 8, "default_pg"),
            "h": Collective("all_reduce", 16 << 20, 8, "default_pg"),
        },
        device_names=("AMD Instinct MI300X",) * 8,
    ),
    # Activations exchanged in the forward pass.
    _drawn(
        """
        gpu   : kkk   kkk   kkkx
        gpu 20:    aaa   aaa
        opt   :                O
        """,
        comms={"a": Collective("all_to_all", 96 << 20, 8, "ep")},
    ),
)

_SILENT = (
    # Hidden but for the gradients that are ready last.
    _drawn(
        """
        gpu   : kkkbbbbbbbb xx
        gpu 20:     gggggg g
        bwd   :    BBBBBBBB
        opt   :             OO
        """,
        comms={"g": Collective("all_reduce", 25 << 20, 2, "default_pg")},
    ),
    # Not hidden by kernels, but on nobody's path: the step waits for data.
    _drawn("""
        load  : wwwwwwwwww
        host  : ..........lo
        gpu   :           kkkkk
        opt   :               O
    """),
    # Hidden throughout.
    _drawn(
        """
        gpu   : kkkkkkkkkkkkk
        gpu 20:   aaaa  aaaa
        opt   :             O
        """,
        comms={"a": Collective("all_gather", 96 << 20, 8, "mesh_fsdp")},
    ),
)

RULE = Rule(
    "exposed-communication",
    check,
    fixers=tuple(dict.fromkeys(name for names in _FIXERS.values() for name in names)),
    fires=_FIRES,
    silent=_SILENT,
    nearness=70,
    symptom=Symptom.RANKS,
)
