"""How one figure behind a finding is written."""

from __future__ import annotations

import pytest

from diagnose.model import Evidence
from diagnose.report.wording.phrases import evidence


@pytest.mark.parametrize(("count", "said"), [(5.0, "5"), (1.5, "1.5"), (202, "202"), (1234.0, "1,234")])
def test_a_count_has_no_decimals_that_say_nothing(count: float, said: str) -> None:
    assert evidence(Evidence("waits per step", count, "count")) == f"waits per step {said}"


def test_a_measure_keeps_its_digits() -> None:
    assert evidence(Evidence("bandwidth", 5.0, "GB/s")) == "bandwidth 5.00 GB/s"
