"""Decides on each site of a graph: it is rewritten where that pays and is equivalent, else left, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from diagnose import kernels
from diagnose.graph.account import SiteRecord
from diagnose.graph.capture import NotCapturedError, visit_sites
from diagnose.graph.equivalence import Equivalence, affordable, check
from diagnose.graph.nodes import fake_value, hinted_value, place_of
from diagnose.graph.options import Options
from diagnose.graph.patterns import PATTERNS
from diagnose.graph.site import Pattern, Site
from diagnose.graph.site_search import modules_of, sites_of
from diagnose.graph.timing import Stopwatch, Times

MOST_FOR_MEMORY = 1.5
"""How many times as long a site may take that saves memory; memory buys back less than that in larger batches."""

UNCHECKED = "it could not be checked"


@dataclass
class Decision:
    """One site, and what is known of it so far."""

    pattern: Pattern
    site: Site
    left: str
    """Why it stays; empty while nothing speaks against rewriting it."""
    checked: Equivalence | None = None
    share: float = 1.0
    sizes: Sequence[torch.Tensor] = ()
    """The inputs that it was checked on, without the values."""
    times: Times | None = None

    def record(self, options: Options) -> SiteRecord:
        """Return the account's entry for this decision."""
        file, line, module = place_of(self.site.anchor)
        if self.left or self.checked is None:
            return SiteRecord(self.pattern.name, file, line, module, self.left)
        peaks, times = self.checked.peaks_bytes, self.times
        return SiteRecord(
            self.pattern.name,
            file,
            line,
            module,
            left="",
            estimated_bytes=self.pattern.saves(self.site, _sizes(self.site), options.kind),
            measured_bytes=None if peaks is None else peaks[0] - peaks[1],
            checked_share=self.share,
            # Checks run eagerly, whatever runs the graph.
            estimated_for_check_bytes=self.pattern.saves(self.site, list(self.sizes), "eager"),
            found_ns=None if times is None else times.found_ns,
            fused_ns=None if times is None else times.fused_ns,
        )


def decide(module: fx.GraphModule, inputs: Sequence[Any], options: Options) -> tuple[list[Decision], str]:
    """Return each site's decision, in the graph's order, and a sentence about the graph as a whole."""
    try:
        decisions = [each for part in modules_of(module) for each in _candidates(part.graph, options)]
    except Exception as error:  # noqa: BLE001 a graph that cannot be read is compiled as it is
        return [], f"nothing was rewritten: the graph could not be read ({type(error).__name__}: {error})"
    wanted = {decision.site: decision for decision in decisions if not decision.left}
    note, watch = "", Stopwatch()
    try:
        if wanted:
            visit_sites(module, inputs, list(wanted), lambda site, values: _check(wanted[site], values, options, watch))
    except NotCapturedError as error:
        note = f"nothing was rewritten: {error}"
    except Exception as error:  # noqa: BLE001 a graph that cannot be run beforehand is compiled as it is
        note = f"the graph could not be run beforehand: {type(error).__name__}"
    for decision in wanted.values():
        decision.left = decision.left or ("" if decision.checked else UNCHECKED)
    return decisions, note


def _candidates(graph: fx.Graph, options: Options) -> list[Decision]:
    """All sites, none of those to rewrite in another's way."""
    decisions: list[Decision] = []
    seen: set[fx.Node] = set()
    taken: set[fx.Node] = set()
    for pattern, site in sites_of(graph, [each for each in PATTERNS if options.considers(each.name)]):
        left = _why_left(pattern, site, options)
        # What one pattern leaves, another may still have; that two leave it is said once.
        if taken.isdisjoint(site.removed) and not (left and seen & set(site.removed)):
            decisions.append(Decision(pattern, site, left))
            seen.update(site.removed)
            taken.update(() if left else site.removed)
    order = {node: place for place, node in enumerate(graph.nodes)}
    return sorted(decisions, key=lambda decision: order[decision.site.anchor])


def _why_left(pattern: Pattern, site: Site, options: Options) -> str:
    """Why a site is not even checked; empty where it is."""
    if options.rewrite != "pays":
        return ""
    anchor = fake_value(site.anchor)
    if anchor is None or anchor.device.type == "cpu":
        return "no gain is known on a CPU"
    if kernels.backend(anchor.device) != "triton":
        return "Triton does not reach the device"
    return pattern.keeps(site, _sizes(site), options.kind)


def _check(decision: Decision, values: Sequence[torch.Tensor], options: Options, watch: Stopwatch) -> None:
    """Check a site, and time it where its time decides."""
    site = decision.site
    used, decision.share = affordable(site, values)
    decision.sizes = [value.to("meta") for value in used]
    decision.checked = check(site, used, decision.share)
    decision.left = decision.checked.refused
    if not decision.left and options.rewrite == "pays":
        try:
            decision.times = watch.times(site, used)
        except RuntimeError as error:  # out of memory is one
            decision.left = f"it could not be timed: {type(error).__name__}"
        else:
            decision.left = _slower(decision.pattern, decision.times)


def _slower(pattern: Pattern, times: Times) -> str:
    """Why a site is better left as it is, given its times; empty where it is not."""
    limit = MOST_FOR_MEMORY if pattern.trades == "time for memory" else 1.0
    if times.ratio < limit:
        return ""
    milliseconds = f"{times.fused_ns / 1e6:.2f} ms against {times.found_ns / 1e6:.2f} ms"
    return f"fused, it takes {times.ratio:.2f} times as long: {milliseconds} forward and backward"


def _sizes(site: Site) -> list[torch.Tensor]:
    return [hinted_value(node) for node in site.inputs]
