"""Fixes that are tried without a finding: those that change how all of a busy device's work is computed.

A finding counts what one cause costs. What compiling, another number format or another memory format gives beyond that
is in no finding, and a trial tells it. They promise nothing, and so have their turn after all that does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.proposals import Proposal
from diagnose.model import Confidence, Diagnosis, Facts, Finding, Severity
from diagnose.plugins import Catalogue

UNNAMED = "compute"
"""The rule of their finding, which is none: the time that the device computes."""
LEAST_BUSY = 0.5
"""A share of the step: a device that computes for less of it waits for most of it, and findings say for what."""


def is_named(proposal: Proposal) -> bool:
    """Whether a finding stands behind a proposal."""
    return any(finding.rule != UNNAMED for finding in proposal.findings)


def unnamed(diagnosis: Diagnosis, facts: Facts, catalogue: Catalogue, named: Collection[str]) -> Iterator[Candidate]:
    """The fixers of a whole step that nothing `named`, where an accelerator computes for most of the step."""
    spent = diagnosis.accounting
    if facts.device_name is None or spent.compute < LEAST_BUSY * max(1, spent.total_ns):
        return
    finding = Finding(UNNAMED, Severity.LOW, None, 0, 0.0, Confidence.HINT, "no finding names it: tried all the same")
    for fixer in sorted(catalogue.fixers.values(), key=lambda fixer: (fixer.order, fixer.name)):
        if fixer.whole_step and fixer.name not in named:
            yield Candidate(finding, fixer)
