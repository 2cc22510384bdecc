"""What keeps a busy device busy: the compute of a step by what bounds its kernels."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model import Accounting, ComputePart, Diagnosis, Steps
from diagnose.report.wording.compute_bounds import bounds_of_compute

MS = 1_000_000


def part(bound: str, form: str | None, ms: int) -> ComputePart:
    return ComputePart(bound, form, False, None, None, ms * MS, 0, 0)


def run(**ms: int) -> Diagnosis:
    """A step that computes for so many milliseconds by class."""
    by = {kind: time * MS for kind, time in ms.items()}
    spent = Accounting(compute=sum(by.values()), idle={"dispatch": 5 * MS}, compute_by=by)
    return Diagnosis(1, ("rank0",), 1, "NVIDIA H200", Steps(1, spent.total_ns), spent, has_device=True)


def test_the_largest_class_comes_first_and_little_ones_are_left_out() -> None:
    assert bounds_of_compute(run(unknown=2, memory=25, matmul=70, latency=3)) == (
        "Of the compute, by what bounds it: 70 % matrix products, 25 % kernels that wait for memory."
    )


def test_products_have_the_formats_in_which_they_take_long() -> None:
    parts = (part("matmul", "fp32", 24), part("matmul", "tf32", 45), part("matmul", "bf16", 1), part("memory", None, 9))
    said = bounds_of_compute(replace(run(matmul=70, memory=30), compute=parts))
    assert "70 % matrix products (tf32, fp32), 30 %" in said


def test_kernels_of_unknown_class_are_named_only_beside_known_ones() -> None:
    assert "25 % kernels of which that is unknown" in bounds_of_compute(run(matmul=75, unknown=25))
    assert bounds_of_compute(run(unknown=100)) == ""


def test_without_a_device_nothing_is_said() -> None:
    assert bounds_of_compute(run()) == ""
