"""What `low-precision-headroom` says of devices with and without bfloat16."""

from __future__ import annotations

import pytest

from diagnose.measure import Measures
from diagnose.plugins import load_rules
from diagnose.rule import Claim
from diagnose.trace.drawn import drawn

RULE = load_rules().rules["low-precision-headroom"]


@pytest.mark.parametrize(("device", "needs_scaler"), [("Tesla V100-SXM2-16GB", True), ("NVIDIA A100-SXM4-80GB", False)])
def test_a_device_without_bfloat16_is_said_to_need_a_grad_scaler(device: str, needs_scaler: bool) -> None:
    trace = drawn(
        """
        host: olssssssss
        gpu :   kkkkkkkk
        step:           |
        """,
        repeat=4,
        kernels={"k": "volta_sgemm_128x64_nn"},
        ops={"o": "aten::mm"},
        shapes={"o": ("[[8192,8192],[8192,8192]]", '["float","float"]')},
        device_names=(device,),
    )
    (claim,) = [one for one in RULE.check(Measures(trace)) if isinstance(one, Claim)]
    assert (f"in {'float16' if needs_scaler else 'bfloat16'} the products") in claim.summary
    assert ("needs a GradScaler" in (claim.confirm or "")) is needs_scaler
