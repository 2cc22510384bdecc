"""Which fixers `input-bound` offers, by what the program runs on, and what it tells of a loader by its iterator."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize(
    ("iterator", "said"),
    [
        ("_SingleProcessDataLoaderIter", "it has no workers, the training thread makes each batch itself"),
        ("_MultiProcessingDataLoaderIter", "the loader is slower than training"),
    ],
)
def test_the_profiler_names_the_iterator_of_a_loader_without_workers(iterator: str, said: str) -> None:
    trace = drawn(ON_A_DEVICE, repeat=4)
    names = {"DataLoader.__next__": f"enumerate(DataLoader)#{iterator}.__next__"}
    recorded = replace(trace, names=tuple(names.get(name, name) for name in trace.names))
    (claim,) = (one for one in RULE.check(Measures(recorded)) if isinstance(one, Claim))
    assert claim.summary.endswith(said)
