"""When a quiet run may be called healthy: its compute is understood, and near what good kernels take."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model import Accounting, ComputePart, Diagnosis, Steps, StepWork
from diagnose.report.wording.headroom import headroom
from diagnose.report.wording.phrases import is_healthy, quiet_news

MS = 1_000_000


def part(
    bound: str, time_ms: int, least_ms: float, known_ms: int | None = None, form: str | None = None
) -> ComputePart:
    """Compute of one class."""
    known = time_ms if known_ms is None else known_ms
    return ComputePart(bound, form, False, None, None, time_ms * MS, known * MS, round(least_ms * MS))


def run(*parts: ComputePart) -> Diagnosis:
    """A step of 100 ms that computes for 95 of them, without a finding."""
    steps = Steps(1, 100 * MS, 100 * MS, 100 * MS, "optimizer")
    spent = Accounting(compute=95 * MS, idle={"dispatch": 5 * MS})
    return Diagnosis(1, ("rank0",), 1, "NVIDIA H200", steps, spent, has_device=True, compute=parts)


def test_products_and_memory_at_the_rates_of_good_kernels_are_healthy() -> None:
    good = run(part("matmul", 80, 58, form="bf16"), part("memory", 15, 12.5))
    left = headroom(good)
    assert left is not None
    assert left.share < 0.05
    assert is_healthy(good)
    assert quiet_news(good).startswith("Healthy: nothing found here could give back 5 % of a step.")


def test_products_far_below_are_named_and_not_healthy() -> None:
    slow = run(part("matmul", 80, 30, form="tf32"), part("memory", 15, 12.5))
    assert not is_healthy(slow)
    said = quiet_news(slow)
    assert "Healthy" not in said
    assert "Up to 40 % of a step may be left: good kernels would take less for the same operations" in said
    assert "40.0 ms in products in tf32" in said


def test_what_nobody_knows_is_not_healthy() -> None:
    unknown = run(part("matmul", 55, 40, form="bf16"), part("unknown", 40, 0, known_ms=0))
    assert not is_healthy(unknown)
    assert "of 40.0 ms nobody knows the operations and bytes. No rule explains it yet." in quiet_news(unknown)


def test_without_a_device_nobody_knows_how_near_it_is() -> None:
    assert headroom(run()) is None
    assert not is_healthy(run())
    assert "no work of a device was recorded" in quiet_news(run())


def test_measured_ceilings_are_nearly_reached_by_good_kernels() -> None:
    work = StepWork(1, 1.0, 1.0, 0.8, 1.0, "measured")
    slow = run(part("matmul", 95, 72, form="bf16"))
    assert is_healthy(slow)
    assert not is_healthy(replace(slow, work=work))
