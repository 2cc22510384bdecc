"""Which fixers `pageable-copies` offers, by where the batches come from."""

from __future__ import annotations

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Site, drawn

RULE = plugins.load().rules["pageable-copies"]
BLOCKING = """
host: cccccol
gpu :  hhhh  kkkkkkkk
step:                |
"""
LOADING = """
load: w
host:  cccccol
gpu :   hhhh  kkkkkkkk
step:                 |
"""
LOADER = Site("DataLoader", "train.py", 12, "main", {"num_workers": 2})
MODEL = Site("module", "train.py", 14, "main", {})


def offered(drawing: str, *sites: Site) -> tuple[str, ...]:
    trace = drawn(drawing, repeat=4, sites=sites)
    (claim,) = (answer for answer in RULE.check(Measures(trace)) if isinstance(answer, Claim))
    assert claim.fixers is not None
    return tuple(claim.fixers)


def test_a_program_with_a_loader_is_offered_its_fixers() -> None:
    assert "loader-pin" in offered(BLOCKING, LOADER)
    assert "loader-pin" in offered(LOADING)


def test_a_program_without_a_loader_is_not() -> None:
    for found in (offered(BLOCKING), offered(BLOCKING, MODEL)):
        assert found == ("nonblocking-copies", "keep-on-device")
