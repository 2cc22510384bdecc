"""Which fixers `input-bound` offers, by what the program runs on."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, drawn

RULE = plugins.load().rules["input-bound"]
ON_A_CPU = """
    load: wwwww
    host:      oooo
    opt :         O
"""
ON_A_DEVICE = """
    load: wwwww
    host:      ol
    gpu :       kkkk
    step:           |
"""


@pytest.mark.parametrize(("drawing", "pins"), [(ON_A_CPU, False), (ON_A_DEVICE, True)])
def test_pinned_memory_is_offered_where_batches_are_copied_to_a_device(drawing: str, pins: bool) -> None:
    (claim,) = (one for one in RULE.check(Measures(drawn(drawing, repeat=4))) if isinstance(one, Claim))
    assert claim.fixers is not None
    assert "loader-workers" in claim.fixers
    assert ("loader-pin" in claim.fixers) == pins
