"""Holds the costs of two commits against each other: what became worse without a reason, and what merely changed.

A cost that rises with the model or the batch is information. What no such change explains is a regression: a wait for
the device, a copy, launches for the same FLOPs, operators recorded for a backward pass that never comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from diagnose.regressions.costs import Costs, Line
from diagnose.regressions.lines import LineMap
from diagnose.regressions.options import lost_options
from diagnose.units import format_bytes, format_flops, format_share

MORE_LAUNCHES = 0.10
MORE_BYTES = 0.25
MORE_FLOPS = 0.05
MORE_MEMORY = 0.10
"""Shares by which a step may launch, move, compute and hold more before that counts as worse. Chosen on the harmless
changes of `benchmarks/regressions`. What is counted has no noise: they say what is worth a reviewer's time."""
MORE_EVENTS = 0.5
"""Waits, copies and the like of a step: what comes in every second step, and no rarer log or evaluation."""
LEAST_LAUNCHES = 32
"""Launches a step: at some 6 µs each, fewer more are 0.2 ms, which a new term of a loss may take and a loop exceeds."""
LEAST_BYTES = 1 << 14
"""Bytes a step: fewer more are a few new scalars and vectors."""
SAME = 0.01
"""The share by which a number may differ that is taken for the same."""
MOST_LINES = 3
"""Lines told of one difference."""


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
    """False for information: a change of the model or the batch explains it, or it bought something else."""


def compare(base: Costs, head: Costs, lines: LineMap) -> list[Difference]:
    """Return what differs, regressions first."""
    lost = (Difference("option", said, *(where or lines.first_change)) for said, where in lost_options(base, head))
    found = [*_Comparison(base, head, lines).differences(), *lost]
    return sorted(found, key=lambda one: not one.is_regression)


@dataclass(frozen=True)
class _Comparison:
    base: Costs
    head: Costs
    lines: LineMap

    def differences(self) -> Iterator[Difference]:
        """Yield every difference."""
        syncs = list(self._events("sync", "sync", "the host waits for the device"))
        yield from syncs
        yield from self._copies({(one.file, one.line) for one in syncs})
        yield from self._computed()
        yield from self._launched()
        yield from self._memory_held()
        yield from self._precision()
        yield from self._compiled()
        yield from self._communicated()

    @cached_property
    def work_changed(self) -> str:
        """Why a step does other work than before, for a sentence; empty where it does the same."""
        base, head = self.base, self.head
        if (base.tensors, base.elements) != (head.tensors, head.elements):
            return f"; the model has {head.elements:,} parameters instead of {base.elements:,}"
        if _batches(base) != _batches(head):
            return f"; the batch is {_batches(head)} instead of {_batches(base)}"
        if abs(self._more("launch")) < SAME and abs(self._more_flops) > SAME:
            return "; the same operators compute tensors of another size"
        return ""

    @cached_property
    def _more_flops(self) -> float:
        return _more(sum(self.base.flops.values()), sum(self.head.flops.values()))

    @cached_property
    def _more_memory(self) -> float:
        return _more(self.base.peak_bytes, self.head.peak_bytes)

    def _copies(self, told: set[Line]) -> Iterator[Difference]:
        copies = list(self._events("copy to device", "copy", "a tensor is copied to the device"))
        copies += self._events("copy to host", "copy", "a tensor is copied to the host")
        if not copies:
            copies += self._events("blocking copy", "copy", "a copy to the device waits (it lacks non_blocking)")
        yield from (one for one in copies if (one.file, one.line) not in told)
        if not copies and not self.work_changed and self._is_larger("copy to device"):
            more = format_share(self._more("copy to device", sizes=True))
            yield self._at("copy", f"{more} more bytes are copied to the device", "copy to device", sizes=True)

    def _computed(self) -> Iterator[Difference]:
        if self._more_flops <= MORE_FLOPS:
            return
        trade = "; it holds less memory for that" if self._more_memory < -MORE_FLOPS else ""
        flops = self.head.flops
        said = f"matrix products take {format_share(self._more_flops)} more FLOPs"
        said += f" ({format_flops(sum(flops.values()))} a step)"
        kind = f"flops {max(flops, key=flops.__getitem__)}"
        yield self._at("flops", said, kind, sizes=True, because=self.work_changed or trade)

    def _launched(self) -> Iterator[Difference]:
        base, head = self.base.count("launch"), self.head.count("launch")
        if self._more("launch") > MORE_LAUNCHES and head - base >= LEAST_LAUNCHES:
            said = f"a step launches {head:.0f} kernels instead of {base:.0f}"
            yield self._at("launches", said, "launch", because=self.work_changed)
        elif self._is_larger("launch") and self._more("launch", sizes=True) > self._more_flops + SAME:
            said = f"kernels move {format_share(self._more('launch', sizes=True))} more bytes"
            yield self._at("bytes", said, "launch", sizes=True, because=self.work_changed)

    def _memory_held(self) -> Iterator[Difference]:
        recorded = self._added("recorded")
        if recorded >= 1 and abs(self._more("launch")) < SAME:
            said = f"{recorded:.0f} more of the same operators are recorded for a backward pass"
            yield self._at("recorded", said, "recorded", because=self.work_changed)
        base, head = self.base.peak_bytes, self.head.peak_bytes
        if self._more_memory > MORE_MEMORY and head - base > LEAST_BYTES:
            said = f"a step holds {format_share(self._more_memory)} more memory ({format_bytes(head)} at its peak)"
            yield self._at("memory", said, "launch", sizes=True, because=self.work_changed)
        least = SAME * head  # with which a hundred steps hold twice as much
        if _grows(self.head.live_bytes, least) and not _grows(self.base.live_bytes, least):
            yield self._at("leak", "each step leaves more memory held than the one before", "launch", sizes=True)
        if _grows(self.head.recorded_tensors) and not _grows(self.base.recorded_tensors):
            said = "each step keeps more tensors with the graphs of their backward passes (they lack a `detach`)"
            yield self._at("leak", said, "recorded")

    def _precision(self) -> Iterator[Difference]:
        yield from self._events("float64", "precision", "kernels compute in double precision")
        before, now = _share(self.base.flops, "float32"), _share(self.head.flops, "float32")
        if now - before > MORE_FLOPS:
            said = f"{format_share(now)} of the FLOPs of matrix products are in float32, not {format_share(before)}"
            yield self._at("precision", said, "flops float32", sizes=True)

    def _compiled(self) -> Iterator[Difference]:
        base, head = self.base, self.head
        if not base.count("graph"):
            return
        if not head.count("graph"):
            yield Difference("compile", "no compiled graph runs in a step any more", *self.lines.first_change)
        elif head.count("compilation") > base.count("compilation"):
            said = f"{head.count('compilation') * head.steps:.0f} graphs are compiled anew in {head.steps} steps"
            yield self._at("compile", said, "compilation")
        elif self._added("graph") >= MORE_EVENTS:
            yield from self._events("graph", "compile", "compiled graphs run, between breaks,")
        elif head.graph_breaks > base.graph_breaks:
            said = f"torch.compile breaks its graphs {head.graph_breaks} times instead of {base.graph_breaks}"
            yield Difference("compile", said, *self.lines.first_change)

    def _communicated(self) -> Iterator[Difference]:
        if self.work_changed:
            return
        yield from self._events("collective", "collectives", "ranks communicate")
        if self._added("collective") < MORE_EVENTS and self._more("collective", sizes=True) > MORE_BYTES:
            yield self._at("collectives", "ranks exchange more bytes", "collective", sizes=True)

    def _events(self, kind: str, name: str, words: str) -> Iterator[Difference]:
        """Yield a difference for each line with more of a kind, where steps have more of it often enough."""
        if self._added(kind) < MORE_EVENTS:
            return
        base, head = self.base.count(kind), self.head.count(kind)
        for where in self._culprits(kind) or [self.lines.first_change]:
            yield Difference(name, f"{words} {_times(head)} in each step ({_times(base)} before)", *where)

    def _more(self, kind: str, *, sizes: bool = False) -> float:
        """Return the share by which a count, or a size, is larger than before."""
        if sizes:
            return _more(self.base.size(kind), self.head.size(kind))
        return _more(self.base.count(kind), self.head.count(kind))

    def _is_larger(self, kind: str) -> bool:
        return self._more(kind, sizes=True) > MORE_BYTES and self.head.size(kind) - self.base.size(kind) > LEAST_BYTES

    def _added(self, kind: str) -> float:
        """Return how many more of a kind a step has."""
        return self.head.count(kind) - self.base.count(kind)

    def _at(self, name: str, said: str, kind: str, *, sizes: bool = False, because: str = "") -> Difference:
        """Return a difference at the line that most of it came from; a regression unless there is a reason."""
        where = next(iter(self._culprits(kind, sizes=sizes)), self.lines.first_change)
        return Difference(name, said + because, *where, is_regression=not because)

    def _culprits(self, kind: str, *, sizes: bool = False) -> list[Line]:
        """Return the lines that have more of a kind than before: changed ones only, where there are."""
        base, head = (self.base.sizes, self.head.sizes) if sizes else (self.base.counts, self.head.counts)
        old: Mapping[Line, int] = base.get(kind, {})
        more = {line: n - old.get(self.lines.before(line), 0) for line, n in head.get(kind, {}).items() if line[0]}
        grown = [line for line, added in more.items() if added > 0]
        chosen = [line for line in grown if self.lines.is_changed(line)] or grown
        return sorted(chosen, key=lambda line: -more[line])[:MOST_LINES]


def _more(base: float, head: float) -> float:
    """Return the share by which one number is larger than another: 1 where there was none before."""
    return head / base - 1 if base else float(bool(head))


def _times(count: float) -> str:
    words = {0.0: "never", 1.0: "once", 2.0: "twice"}
    return words.get(count, f"{count:.3g} times")


def _share(flops: Mapping[str, float], name: str) -> float:
    whole = sum(flops.values())
    return flops.get(name, 0) / whole if whole else 0.0


def _grows(held: Sequence[int], least: float = 1) -> bool:
    return len(held) > 2 and all(after - before >= least for before, after in pairwise(held))


def _batches(costs: Costs) -> list[object]:
    return [site["arguments"].get("batch_size") for site in costs.sites if site["kind"] == "DataLoader"]
