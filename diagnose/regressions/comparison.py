"""Holds the costs of two commits against each other: what became worse without a reason, and what merely changed.

A cost that rises with the model or the batch is information. What no such change explains is a regression: a wait for
the device, a copy, launches for the same FLOPs, operators recorded for a backward pass that never comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from diagnose.regressions.costs import Costs, Line
from diagnose.regressions.lines import LineMap
from diagnose.regressions.options import lost_options
from diagnose.units import format_bytes, format_flops, format_share

MORE_LAUNCHES = 0.10
MORE_BYTES = 0.15
MORE_FLOPS = 0.05
MORE_MEMORY = 0.10
"""Shares by which a step may launch, move, compute and hold more before that counts as worse. Chosen on the harmless
changes of `benchmarks/regressions`; what a step costs on the CPU is counted, so that nothing of them is noise."""
LEAST_LAUNCHES = 4
"""Launches a step: fewer more are a new line of a small program."""
LEAST_BYTES = 1 << 16
"""Bytes a step: fewer more are a new scalar."""
MOST_LINES = 3
"""Lines told of one difference."""
SAME = 0.01
"""The share by which a number may differ that is taken for the same."""


@dataclass(frozen=True)
class Difference:
    """One thing that a commit changed in what a step costs."""

    kind: str
    """`sync`, `copy`, `launches`, `bytes`, `flops`, `memory`, `leak`, `recorded`, `precision`, `compile`,
    `collectives`, or `option`."""
    message: str
    file: str = ""
    line: int = 0
    is_regression: bool = True
    """False for information: the change of the model, the batch or the options explains it."""


def compare(base: Costs, head: Costs, lines: LineMap) -> list[Difference]:
    """Return what differs, regressions first."""
    comparison = _Comparison(base, head, lines)
    lost = (Difference("option", said, file, line) for said, file, line in lost_options(base, head))
    found = [*comparison.differences(), *lost]
    return sorted(found, key=lambda one: not one.is_regression)


@dataclass(frozen=True)
class _Comparison:
    base: Costs
    head: Costs
    lines: LineMap

    def differences(self) -> Iterator[Difference]:
        """Yield every difference."""
        syncs = list(self._waits())
        yield from syncs
        yield from self._copies({(one.file, one.line) for one in syncs})
        yield from self._work()
        yield from self._precision()
        yield from self._compile()
        yield from self._collectives()

    @property
    def work_changed(self) -> str:
        """Why a step does other work than before: words for a sentence; empty where it does the same."""
        base, head = self.base, self.head
        if (base.tensors, base.elements) != (head.tensors, head.elements):
            return f"the model has {head.elements:,} parameters instead of {base.elements:,}"
        if _batches(base) != _batches(head):
            return f"the batch is {_batches(head)} instead of {_batches(base)}"
        more = self._more(Costs.count, "launch")
        if abs(more) < SAME and abs(_ratio(sum(head.flops.values()), sum(base.flops.values())) - 1) > SAME:
            return "the same operators compute tensors of another size"
        return ""

    def _waits(self) -> Iterator[Difference]:
        yield from self._events("sync", "sync", "waits for the device", "times in each step, instead of")

    def _copies(self, told: set[Line]) -> Iterator[Difference]:
        for kind, words in (("copy to device", "copies to the device"), ("copy to host", "copies to the host")):
            for found in self._events(kind, "copy", words, "times in each step, instead of"):
                if (found.file, found.line) not in told:
                    yield found
        if abs(self._added("copy to device")) < 1:
            words = "copies to the device while the host waits (without non_blocking)"
            yield from self._events("blocking copy", "copy", words, "times in each step, instead of")

    def _events(self, kind: str, name: str, words: str, times: str) -> Iterator[Difference]:
        if self._added(kind) < 1:
            return
        base, head = self.base.count(kind) / self.base.steps, self.head.count(kind) / self.head.steps
        places = self._culprits(self.base.counts, self.head.counts, kind) or [self.lines.first_change]
        for where in places:
            yield Difference(name, f"{words} {head:.3g} {times} {base:.3g}", *where)

    def _work(self) -> Iterator[Difference]:
        base, head, why = self.base, self.head, self.work_changed
        launches, traffic = self._more(Costs.count, "launch"), self._more(Costs.size, "launch")
        flops = _ratio(sum(head.flops.values()) / head.steps, sum(base.flops.values()) / base.steps) - 1
        memory = _ratio(head.peak_bytes, base.peak_bytes) - 1
        because = f"; {why}" if why else ""
        if flops > MORE_FLOPS:
            trade = memory < -MORE_FLOPS and not why
            said = f"a step computes {format_share(flops)} more ({format_flops(sum(head.flops.values()) / head.steps)})"
            said += "; it holds less memory for that" if trade else because
            yield self._at(
                "flops",
                said,
                f"flops {max(head.flops, key=lambda name: head.flops[name])}",
                not (trade or why),
                sizes=True,
            )
            if trade:
                return
        if launches > MORE_LAUNCHES and self._added("launch") >= LEAST_LAUNCHES:
            said = f"a step launches {head.count('launch') / head.steps:.0f} kernels instead of {base.count('launch') / base.steps:.0f}"
            yield self._at("launches", said + because, "launch", not why)
        elif traffic > MORE_BYTES and traffic > flops + SAME and self._added_bytes("launch") > LEAST_BYTES:
            said = f"kernels move {format_share(traffic)} more bytes in each step ({format_bytes(head.size('launch') / head.steps)})"
            yield self._at("bytes", said + because, "launch", not why, sizes=True)
        recorded = self._added("recorded") - max(0.0, self._added("launch"))
        if recorded >= 2:
            said = (
                f"{recorded:.0f} operators more are recorded for a backward pass in each step, which computes no more"
            )
            yield self._at("recorded", said, "recorded", not why)
        if memory > MORE_MEMORY and head.peak_bytes - base.peak_bytes > LEAST_BYTES:
            said = f"a step holds {format_share(memory)} more memory at its peak ({format_bytes(head.peak_bytes)})"
            yield self._at("memory", said + because, "launch", not why, sizes=True)
        if _grows(head) and not _grows(base):
            yield self._at("leak", "every step leaves more tensors alive than the one before", "launch", True)

    def _precision(self) -> Iterator[Difference]:
        base, head = self.base.flops, self.head.flops
        for name in ("float64", "float32"):
            before, now = _share(base, name), _share(head, name)
            if now - before > MORE_FLOPS:
                said = f"{format_share(now)} of the FLOPs of matrix products are computed in {name}, instead of {format_share(before)}"
                yield self._at("precision", said, f"flops {name}", True, sizes=True)
                return

    def _compile(self) -> Iterator[Difference]:
        base, head = self.base, self.head
        if base.count("graph") and not head.count("graph"):
            yield Difference("compile", "no compiled graph runs in a step any more", *self.lines.first_change)
            return
        yield from (
            self._events("graph", "compile", "compiled graphs run", "times in each step, instead of")
            if base.count("graph")
            else ()
        )
        if head.count("compilation") > base.count("compilation"):
            yield self._at(
                "compile",
                f"{head.count('compilation')} graphs are compiled again after the first step",
                "compilation",
                True,
            )
        elif base.count("graph") and head.graph_breaks > base.graph_breaks and self._added("graph") < 1:
            yield Difference(
                "compile",
                f"torch.compile breaks its graph {head.graph_breaks} times instead of {base.graph_breaks}",
                *self.lines.first_change,
            )

    def _collectives(self) -> Iterator[Difference]:
        if not self.work_changed:
            yield from self._events("collective", "collectives", "ranks communicate", "times in each step, instead of")
            if self._more(Costs.size, "collective") > MORE_BYTES and self._added("collective") < 1:
                yield self._at("collectives", "ranks exchange more bytes in each step", "collective", True, sizes=True)

    def _more(self, of: Callable[[Costs, str], int], kind: str) -> float:
        """The share by which a number of a step is larger than before."""
        return _ratio(of(self.head, kind) / self.head.steps, of(self.base, kind) / self.base.steps) - 1

    def _added(self, kind: str) -> float:
        return self.head.count(kind) / self.head.steps - self.base.count(kind) / self.base.steps

    def _added_bytes(self, kind: str) -> float:
        return self.head.size(kind) / self.head.steps - self.base.size(kind) / self.base.steps

    def _at(self, name: str, message: str, kind: str, is_regression: bool, *, sizes: bool = False) -> Difference:
        """A difference at the line where most of it came from."""
        base, head = (self.base.sizes, self.head.sizes) if sizes else (self.base.counts, self.head.counts)
        where = next(iter(self._culprits(base, head, kind)), self.lines.first_change)
        return Difference(name, message, *where, is_regression=is_regression)

    def _culprits(
        self, base: Mapping[str, Mapping[Line, int]], head: Mapping[str, Mapping[Line, int]], kind: str
    ) -> list[Line]:
        """The lines of the new commit that have more of a kind than their old ones: changed lines, where there are."""
        old, new = base.get(kind, {}), head.get(kind, {})
        more = {where: count - old.get(self.lines.before(where), 0) for where, count in new.items() if where[0]}
        excess = {where: count for where, count in more.items() if count > 0}
        changed = [where for where in excess if self.lines.is_changed(where)]
        chosen = changed or list(excess)
        return sorted(chosen, key=lambda where: -excess[where])[:MOST_LINES]


def _ratio(head: float, base: float) -> float:
    return head / base if base else (2.0 if head else 1.0)


def _share(flops: dict[str, int], name: str) -> float:
    whole = sum(flops.values())
    return flops.get(name, 0) / whole if whole else 0.0


def _grows(costs: Costs) -> bool:
    return len(costs.live_bytes) > 2 and all(
        b > a for a, b in zip(costs.live_bytes, costs.live_bytes[1:], strict=False)
    )


def _batches(costs: Costs) -> list[object]:
    return [site["arguments"].get("batch_size") for site in costs.sites if site["kind"] == "DataLoader"]
