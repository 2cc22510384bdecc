"""Which probes would settle the findings that matter most. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.collect.experiments import Probe
from diagnose.model import Finding

LEAST_SHARE = 0.01
"""A finding that is predicted to save less of the step than a fix must (`diagnose.verdict`) needs no probe."""


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
