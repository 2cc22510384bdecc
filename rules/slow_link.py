"""Collectives move bytes far more slowly than the link between these devices can.

What it finds
    Large collectives among devices of one host, of which even the fastest reaches less than a tenth of the link's rate:
    NCCL over sockets or host memory where there is NVLink, a link that is down or was never set up.

Why it costs
    NVLink moves some hundred gigabytes per second, a socket some. What compute would hide becomes most of the step.

What proves it
    Bytes over the bus per second (the message times 2 (n − 1) / n for an all-reduce of n ranks, (n − 1) / n for what
    gathers or scatters) of the fastest collective of 4 MiB or more, against the rate that the device's maker states.
    The fastest one has waited least, so that waiting for other ranks is not taken for slowness; where a collective
    takes longer than one of twice its bytes, all have waited. Nothing is said of jobs whose ranks do not all fit on one
    host: networks are slower. The recoverable time is that of the step with transfers at half of the link's rate, as
    the replay says.

What fixes it
    Nothing in the program: `NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE` and `NCCL_SOCKET_IFNAME` in the environment,
    `nvidia-smi topo -m`, and what `NCCL_DEBUG=INFO` says of the transport.

Thresholds
    A tenth of the link's rate: a network of 400 Gb/s, which a job across hosts may well use, is 11 % of NVLink's 450
    GB/s. A half: what large collectives reach; two H200 were measured at 217 GB/s with 17 MB, 296 GB/s with 268 MB.
    4 MiB: smaller messages are latency (1 MB takes 30 µs between two H200). Rates by device: diagnose/measure/links.py.
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
    Rule,
    Waste,
    drawn,
    shortened,
)

_GB = 1e9


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Transfers far below the link's rate."""
    exchange = measures.exchange
    rate, link = exchange.bus_bytes_per_s, exchange.link
    if not exchange.slow or rate is None or link is None:
        return
    rows = exchange.waste == Waste.SLOW
    transfer = measures.communication.transfer_ns * rows
    less = shortened(measures, transfer, exchange.needed_ns * rows)
    if less.gain_ns == 0:
        return
    steps = measures.step_count
    yield Claim(
        summary=f"collectives move at most {rate / _GB:.1f} GB/s over a bus of which {link.name} carries "
        f"{link.bytes_per_s / _GB:.0f}: this job does not use it",
        recoverable_ns=less.gain_ns,
        claims=less.exposed,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("bus bandwidth of the fastest large collective", round(rate / _GB, 2), "GB/s"),
            Evidence(f"one way over {link.name}", link.bytes_per_s / _GB, "GB/s"),
            Evidence("time of these transfers", int(transfer.sum()) // steps, "ns"),
        ],
        confirm="NCCL_DEBUG=INFO names the transport of every channel",
        cut=less.cut,
    )


_H200S = ("NVIDIA H200", "NVIDIA H200")
_KERNELS = {"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}

_FIRES = (
    # 64 MiB in 12 ms are 5.6 GB/s.
    drawn(
        """
        gpu   : kkkbbb            x
        gpu 20:      gggggggggggg
        bwd   :    BBB
        opt   :                   O
        """,
        repeat=4,
        kernels=_KERNELS,
        comms={"g": Collective("all_reduce", 64 << 20, 2, "default_pg")},
        device_names=_H200S,
    ),
)

_SILENT = (
    # 1 GiB in 4 ms are 268 GB/s.
    drawn(
        """
        gpu   : kkkbbb    x
        gpu 20:      gggg
        bwd   :    BBB
        opt   :           O
        """,
        repeat=4,
        kernels=_KERNELS,
        comms={"g": Collective("all_reduce", 1 << 30, 2, "default_pg")},
        device_names=_H200S,
    ),
    # Sixteen ranks are on two hosts at least.
    drawn(
        """
        gpu   : kkkbbb            x
        gpu 20:      gggggggggggg
        bwd   :    BBB
        opt   :                   O
        """,
        repeat=4,
        kernels=_KERNELS,
        comms={"g": Collective("all_reduce", 64 << 20, 16, "default_pg")},
        device_names=("NVIDIA H200",) * 8,
    ),
)

RULE = Rule("slow-link", check, fires=_FIRES, silent=_SILENT, nearness=30)
