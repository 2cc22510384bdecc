"""The account of the backend in this process: what it did to each graph that it was given."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

LOG = logging.getLogger("diagnose.graph")


@dataclass(frozen=True)
class SiteRecord:
    """One site: where it is, what became of it, and what that saves."""

    pattern: str
    file: str
    line: int
    module: str
    left: str
    """Why it stayed as it was; empty where it was rewritten."""
    estimated_bytes: int = 0
    """The estimate of how much the peak of its forward and backward pass falls."""
    measured_bytes: int | None = None
    """How much the peak fell when it was checked; None where the device does not count."""
    checked_share: float = 1.0
    """The share of the rows that the check was made on."""
    estimated_for_check_bytes: int = 0
    """The estimate for that share."""
    found_ns: int | None = None
    """The time of a forward and a backward pass as found, in eager code; None where that was not timed."""
    fused_ns: int | None = None
    """The time with the fused operator."""

    @property
    def rewritten(self) -> bool:
        """Whether the fused operator took its place."""
        return not self.left

    @property
    def place(self) -> str:
        """File and line, as short as they can be said."""
        return f"{_short(self.file)}:{self.line}" if self.file else "(no line known)"

    def __str__(self) -> str:
        return _together([self])


@dataclass(frozen=True)
class GraphRecord:
    """One graph of Dynamo's."""

    number: int
    device: str
    inner: str
    sites: tuple[SiteRecord, ...]
    note: str = ""
    """A note on the whole graph."""
    peak_bytes: int | None = None
    """The memory of the process at its peak in the first calls of the compiled graph; None before, and on a CPU."""

    def __str__(self) -> str:
        count = f"{sum(site.rewritten for site in self.sites)} of {_sites(len(self.sites))}"
        lines = [f"graph {self.number} ({self.device}, the rest by {self.inner}): {count} rewritten"]
        if self.note:
            lines.append(f"  {self.note}")
        alike: dict[tuple[str, str, str], list[SiteRecord]] = {}
        for site in self.sites:
            alike.setdefault((site.place, site.pattern, site.left), []).append(site)
        lines += [f"  {_together(sites)}" for sites in alike.values()]
        if self.peak_bytes is not None:
            lines.append(f"  peak of its first steps: {_size(self.peak_bytes)} allocated")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """All graphs so far, oldest first."""

    graphs: tuple[GraphRecord, ...] = field(default=())

    @property
    def rewritten(self) -> tuple[SiteRecord, ...]:
        """The sites that were rewritten, of all graphs."""
        return tuple(site for graph in self.graphs for site in graph.sites if site.rewritten)

    @property
    def left(self) -> tuple[SiteRecord, ...]:
        """The sites that stayed as they were, of all graphs."""
        return tuple(site for graph in self.graphs for site in graph.sites if not site.rewritten)

    def __str__(self) -> str:
        return (
            "\n".join(str(graph) for graph in self.graphs) or "no graph has been compiled with the backend `diagnose`"
        )


_graphs: list[GraphRecord] = []


def report() -> Report:
    """Return what was rewritten, where, and what it saves, for every graph compiled in this process."""
    return Report(tuple(_graphs))


def entered(device: str, inner: str, sites: Sequence[SiteRecord], note: str, prints: bool) -> int:
    """Add a graph to the account, log it, and give its number."""
    record = GraphRecord(len(_graphs) + 1, device, inner, tuple(sites), note)
    _graphs.append(record)
    _say(str(record), prints)
    return record.number


def peak_seen(number: int, peak_bytes: int, prints: bool) -> None:
    """Add what a graph's first steps held at their peak."""
    record = replace(_graphs[number - 1], peak_bytes=peak_bytes)
    _graphs[number - 1] = record
    _say(f"graph {number}: peak of its first steps: {_size(peak_bytes)} allocated", prints)


def _say(text: str, prints: bool) -> None:
    LOG.info("%s", text)
    if prints:
        sys.stderr.write(f"diagnose: {text}\n")


def _together(sites: Sequence[SiteRecord]) -> str:
    """One line for sites of one line in the source, one pattern and one outcome: the layers of a model."""
    first, *rest = sites
    modules = f" in {first.module}" if first.module else ""
    if rest:
        modules = (
            f" in {first.module} … {rest[-1].module} ({len(sites)} times)" if first.module else f" ({len(sites)} times)"
        )
    if first.left:
        return f"{first.place}{modules}  {first.pattern}: left as it was: {first.left}"
    return f"{first.place}{modules}  {first.pattern}: rewritten; {_saving(sites)}{_times(sites)}"


def _saving(sites: Sequence[SiteRecord]) -> str:
    total = sum(site.estimated_bytes for site in sites)
    expected = f"should save {_size(total)}" if total > 0 else "should move less and hold as much"
    measured = [site.measured_bytes for site in sites if site.measured_bytes is not None]
    if len(measured) < len(sites):
        return f"{expected}, not measured on this device"
    if all(site.checked_share == 1.0 for site in sites):
        return f"{expected}, measured {_size(sum(measured))}"
    share = min(site.checked_share for site in sites)
    part = _size(sum(site.estimated_for_check_bytes for site in sites))
    return f"{expected}; on {share:.0%} of the rows {part}, measured {_size(sum(measured))}"


def _times(sites: Sequence[SiteRecord]) -> str:
    timed = [
        (site.found_ns, site.fused_ns) for site in sites if site.found_ns is not None and site.fused_ns is not None
    ]
    if not timed:
        return ""
    found, fused = (sum(each) / 1e6 for each in zip(*timed, strict=True))
    return f"; forward and backward {found:.2f} ms, fused {fused:.2f} ms"


def _sites(count: int) -> str:
    return "1 site" if count == 1 else f"{count} sites"


def _size(count: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << power:
            return f"{count / (1 << power):.1f} {unit}"
    return f"{count} B"


def _short(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
