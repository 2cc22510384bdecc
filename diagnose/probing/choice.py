"""Chooses the probes that would settle the findings that matter most. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diagnose.collect.experiments import Probe, load_probes
from diagnose.model import Finding

LEAST_SHARE = 0.01
"""A finding that is predicted to save less of the step than a fix must (`diagnose.verdict`) needs no probe."""


@dataclass(frozen=True)
class Probing:
    """The probes to run, and their budget."""

    names: tuple[str, ...] = ()
    """Empty for those that would settle the top findings."""
    budget_ns: int | None = None
    quick: bool = False

    def after(self, spent_ns: int) -> Probing:
        """Return the settings with the rest of the budget, which bounds the whole command from the start of the
        program.
        """
        return self if self.budget_ns is None else replace(self, budget_ns=max(0, self.budget_ns - spent_ns))

    def chosen(self, findings: Sequence[Finding]) -> list[Probe]:
        """The probes, in the order in which to run them."""
        probes = load_probes()
        return [probes[name] for name in self.names] if self.names else settling(findings, probes)


def settling(findings: Sequence[Finding], probes: Mapping[str, Probe]) -> list[Probe]:
    """The probes that take away the whole cause of a finding, or at least bound it, cheapest first.

    Cheap is what waits for no compiler and has few settings; of equally cheap ones the first is that of the finding
    that is predicted to save most. Of several probes of one finding, one that takes away its cause and no more wins.
    """
    worth = sorted(
        (finding for finding in findings if finding.estimate_share >= LEAST_SHARE), key=lambda one: -one.estimate_ns
    )
    chosen: dict[str, Probe] = {}
    for finding in worth:
        exact = [probe for probe in probes.values() if finding.rule in probe.measures]
        loose = [probe for probe in probes.values() if finding.rule in probe.bounds]
        for probe in (exact or loose)[:1]:
            chosen.setdefault(probe.name, probe)
    return sorted(chosen.values(), key=lambda probe: (probe.compiles, len(probe.settings)))
