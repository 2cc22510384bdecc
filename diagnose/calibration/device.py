"""Measure the ceilings of one device: matmuls by number format, memory, launches, copies to and from the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from diagnose.calibration.record import Device, Transfers
from diagnose.calibration.timing import FEWEST_CALLS, Plan, block_times_ns, once_ns, point
from diagnose.units import NS_PER_S

_ON_DEVICE, _ON_HOST = (4096, 8192), (512, 1024)
"""Sizes of square products, the second twice the first: which of them is fastest differs from format to format."""
_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
_TRANSFER_BYTES = tuple(1 << shift for shift in range(12, 29, 2))
_LAUNCHES = 200
_FORMATS = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_FP8_SINCE = (8, 9)

Work = Callable[[], object]


def measure_device(device: torch.device, budget_ns: int, tell: Callable[[str], None]) -> Device:
    """Measure everything within about `budget_ns`."""
    tell("matrix products")
    rates = _matrix_rates(device, budget_ns // 2)
    tell("memory")
    copied = _copy_rate(device, budget_ns // 10)
    tell("launches and copies")
    on_device = device.type == "cuda"
    return Device(
        name=torch.cuda.get_device_name(device) if on_device else None,
        flops_per_s=rates,
        copy_bytes_per_s=copied,
        launch_ns=_launch_ns(device),
        round_trip_ns=_round_trip_ns(device),
        transfers=_transfers(device, budget_ns // 3) if on_device else (),
    )


def _matrix_rates(device: torch.device, budget_ns: int) -> dict[str, float]:
    """FLOP/s of the fastest of a few sizes, by number format.

    A format that a device only emulates may be a hundred times slower than the others: its larger product is left out
    where it alone would take longer than its share of the time.
    """
    sizes = _ON_DEVICE if device.type == "cuda" else _ON_HOST
    rates: dict[str, float] = {}
    products = list(_products(device))
    share_ns = budget_ns // (len(products) * len(sizes))
    for form, make in products:
        expected_ns = 0
        for size in sizes:
            if expected_ns * FEWEST_CALLS > share_ns:
                break
            try:
                work = make(size)
                one_ns = once_ns(work, device)
            except (RuntimeError, TypeError):
                continue  # neither the device nor torch promises every format
            median = np.median(block_times_ns(work, device, Plan.within(share_ns, one_ns)))
            rates[form] = max(rates.get(form, 0.0), 2 * size**3 / float(median) * NS_PER_S)
            expected_ns = 8 * one_ns  # twice the size
    return rates


def _products(device: torch.device) -> Iterator[tuple[str, Callable[[int], Work]]]:
    for form, dtype in _FORMATS.items():
        yield form, partial(_product, device, dtype, False)
    if device.type != "cuda":
        return
    yield "tf32", partial(_product, device, torch.float32, True)
    yield "int8", partial(_int8_product, device)
    if torch.version.hip is None and torch.cuda.get_device_capability(device) >= _FP8_SINCE:
        yield "fp8", partial(_fp8_product, device)


def _product(device: torch.device, dtype: torch.dtype, tf32: bool, size: int) -> Work:
    """Random numbers: a device draws less power on zeros, and clocks higher."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def work() -> object:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            return torch.mm(a, b, out=out)
        finally:
            torch.set_float32_matmul_precision(before)

    return work


def _int8_product(device: torch.device, size: int) -> Work:
    a, b = (torch.randint(-128, 128, (size, size), device=device, dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(a, b.t())


def _fp8_product(device: torch.device, size: int) -> Work:
    a, b = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _copy_rate(device: torch.device, budget_ns: int) -> float:
    """Bytes read and written per second."""
    size = _COPY_BYTES[device.type]
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    work = partial(target.copy_, source)
    plan = Plan.within(budget_ns, once_ns(work, device))
    return 2 * size / float(np.median(block_times_ns(work, device, plan))) * NS_PER_S


def _launch_ns(device: torch.device) -> int:
    """The host's time for one of many small kernels that follow each other; the queue is never full."""
    small = torch.zeros(16, device=device)
    found = []
    for _ in range(10):
        _wait(device)
        begin = time.perf_counter_ns()
        for _ in range(_LAUNCHES):
            small.add_(1)
        found.append((time.perf_counter_ns() - begin) // _LAUNCHES)
    return int(np.median(found))


def _round_trip_ns(device: torch.device) -> int:
    small = torch.zeros(16, device=device)
    found = []
    for _ in range(_LAUNCHES):
        _wait(device)
        begin = time.perf_counter_ns()
        small.add_(1)
        _wait(device)
        found.append(time.perf_counter_ns() - begin)
    return int(np.median(found))


def _transfers(device: torch.device, budget_ns: int) -> tuple[Transfers, ...]:
    ways = [(to_device, pinned) for to_device in (True, False) for pinned in (True, False)]
    share = budget_ns // (len(ways) * len(_TRANSFER_BYTES))
    found = []
    for to_device, pinned in ways:
        points = []
        for size in _TRANSFER_BYTES:
            host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)
            there = torch.empty(size, dtype=torch.uint8, device=device)
            target, source = (there, host) if to_device else (host, there)
            # A pageable copy keeps the host; only its clock tells the whole of it.
            work = partial(_copied, target, source, device)
            plan = Plan.within(share, once_ns(work, torch.device("cpu")))
            points.append(point(size, block_times_ns(work, torch.device("cpu"), plan)))
        found.append(Transfers(to_device, pinned, tuple(points)))
    return tuple(found)


def _copied(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> None:
    target.copy_(source, non_blocking=True)
    _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
