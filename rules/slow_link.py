"""Collectives move bytes far more slowly than the link between these devices can.

What it finds
    Large collectives among devices of one host, of which even the fastest reaches less than a tenth of the link's rate:
    NCCL over sockets or host memory where there is NVLink, a link that is down or was never set up. And, anywhere,
    large collectives that take three times as long as `diagnose calibrate` measured under the same library and
    settings: a network that others use meanwhile, a link that has degraded since.

Why it costs
    NVLink moves some hundred gigabytes per second, a socket some. What compute would hide becomes most of the step.

What proves it
    Bytes over the bus per second (the message times 2 (n − 1) / n for an all-reduce of n ranks, (n − 1) / n for what
    gathers or scatters) of the fastest collective of 4 MiB or more, against the rate that the device's maker states.
    The fastest one has waited least, so that waiting for other ranks is not taken for slowness; where a collective
    takes longer than one of twice its bytes, all have waited. By the data sheet nothing is said of jobs whose ranks do
    not all fit on one host: networks are slower. The recoverable time is that of the step with transfers at half of the
    link's rate, or at what was calibrated, as the replay says.

What fixes it
    Nothing in the program: `NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE` and `NCCL_SOCKET_IFNAME` in the environment,
    `nvidia-smi topo -m`, and what `NCCL_DEBUG=INFO` says of the transport.

Thresholds
    A tenth of the link's rate: a network of 400 Gb/s, which a job across hosts may well use, is 11 % of NVLink's 450
    GB/s. A half: what large collectives reach; two H200 were measured at 217 GB/s with 17 MB, 296 GB/s with 268 MB.
    Three times the calibrated time: diagnose/measure/comm/communication_waste.py.
    4 MiB: smaller messages are latency (1 MB takes 30 µs between two H200). Rates by device:
    diagnose/measure/comm/links.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.faster_collectives import shortened
from diagnose.model import CollectiveCurve
from diagnose.rule import CannotTell, Claim, Confidence, Evidence, Facts, Measures, Rule, Symptom, Trace, drawn
from diagnose.trace import Collective

_GB = 1e9  # bytes: a unit
_KEEPS_OFF = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Transfers far below what the link can do, or did when it was calibrated."""
    exchange = measures.exchange
    rate, link = exchange.bus_bytes_per_s, exchange.link
    if rate is None or not (exchange.slow or exchange.below_calibrated):
        return
    rows = exchange.waste == Waste.SLOW
    transfer = measures.communication.transfer_ns * rows
    less = shortened(measures, transfer, exchange.needed_ns * rows)
    if less.gain_ns == 0:
        return
    evidence = [Evidence("bus bandwidth of the fastest large collective", round(rate / _GB, 2), "GB/s")]
    if exchange.slow and link is not None:
        evidence.append(Evidence(f"one way over {link.name}", link.bytes_per_s / _GB, "GB/s"))
        said = f"over a bus of which {link.name} carries {link.bytes_per_s / _GB:.0f}: this job does not use it"
        said += _set_to(measures)
    else:
        said = f"over the bus, {_times(measures):.1f} times as slowly as `diagnose calibrate` measured on this machine"
    known = _calibrated_ns(measures)
    if known is not None:
        evidence.append(Evidence("time of these transfers as calibrated", known, "ns"))
    yield Claim(
        summary=f"collectives move at most {rate / _GB:.1f} GB/s {said}",
        recoverable_ns=less.gain_ns,
        claims=less.exposed,
        confidence=Confidence.BOUND,
        evidence=[*evidence, Evidence("time of these transfers", int(transfer.sum()) // measures.step_count, "ns")],
        confirm="NCCL_DEBUG=INFO names each channel's transport; `diagnose calibrate` measures it without the job",
        cut=less.cut,
    )


def _set_to(measures: Measures) -> str:
    """The settings that keep NCCL from a link, where the program's environment has them."""
    settings = measures.trace.facts.network_settings or {}
    found = [f"{name}={settings[name]}" for name in _KEEPS_OFF if settings.get(name, "0") != "0"]
    return f"; {' and '.join(found)} in its environment forbid{'s' if len(found) == 1 else ''} it" if found else ""


def _calibrated_ns(measures: Measures) -> int | None:
    """Return what these transfers take per step by the calibrated curves; None where none holds for all of them."""
    exchange = measures.exchange
    times = exchange.calibrated_ns[exchange.waste == Waste.SLOW]
    return int(times.sum()) // measures.step_count if len(times) and np.isfinite(times).all() else None


def _times(measures: Measures) -> float:
    exchange = measures.exchange
    rows = (exchange.waste == Waste.SLOW) & np.isfinite(exchange.calibrated_ns)
    return float(np.median(measures.communication.transfer_ns[rows] / exchange.calibrated_ns[rows]))


_CALIBRATED = Facts(curves=(CollectiveCurve("all_reduce", 16, 2, (1 << 20, 64 << 20), (100_000, 4_000_000)),))
_EXPOSED = """
    gpu   : kkkbbb            x
    gpu 20:      gggggggggggg
    bwd   :    BBB
    opt   :                   O
    """


def _reduced(lanes: str, size_bytes: int, ranks: int, facts: Facts | None = None) -> Trace:
    """Steps that reduce gradients of a size over so many ranks, at most eight of them on a host."""
    return drawn(
        lanes,
        repeat=4,
        kernels={"b": "gemm", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        comms={"g": Collective("all_reduce", size_bytes, ranks, "default_pg")},
        device_names=("NVIDIA H200",) * min(ranks, 8),
        facts=facts or Facts(),
    )


_FIRES = (
    # 12 ms where 4 were calibrated, on two hosts of which no data sheet tells.
    _reduced(_EXPOSED, 64 << 20, 16, _CALIBRATED),
    # 64 MiB in 12 ms are 5.6 GB/s.
    _reduced(_EXPOSED, 64 << 20, 2),
)

_SILENT = (
    # 8 ms where 4 were calibrated: it runs beside compute.
    _reduced(
        """
        gpu   : kkkbbbbbbbbbbx
        gpu 20:      gggggggg
        bwd   :    BBB
        opt   :              O
        """,
        64 << 20,
        16,
        _CALIBRATED,
    ),
    # 1 GiB in 4 ms are 268 GB/s.
    _reduced(
        """
        gpu   : kkkbbb    x
        gpu 20:      gggg
        bwd   :    BBB
        opt   :           O
        """,
        1 << 30,
        2,
    ),
    # Sixteen ranks are on two hosts at least.
    _reduced(_EXPOSED, 64 << 20, 16),
)

RULE = Rule(
    "slow-link",
    check,
    fixers=("ddp-buckets", "bf16-gradients", "powersgd-gradients"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=30,
    symptom=Symptom.RANKS,
)
