"""The user's program as text, with the fixes kept so far in it, in the order in which they were kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diagnose.compose.knowledge import Known
from diagnose.fixer import Edits, Fixer, Request
from diagnose.model import Finding, Gate, Scalar
from diagnose.program import Program, patch
from diagnose.program.moved import LineMap


@dataclass(frozen=True)
class Kept:
    """A fix in the stack, with what it takes to make its edits again."""

    fixer: Fixer
    finding: Finding
    """Its places are lines of `below`."""
    setting: Mapping[str, Scalar]
    below: Stack
    """What it was put on."""


@dataclass(frozen=True)
class Stack:
    """Texts and recorded sites, all in the lines of the present state."""

    program: Program
    known: Known
    """Its sources stay those of the original; its sites move with the edits."""
    texts: Mapping[str, str]
    kept: tuple[Kept, ...] = field(default=())

    @classmethod
    def of(cls, program: Program, known: Known) -> Stack:
        """The original: nothing kept."""
        return cls(program, known, dict(known.sources))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the kept fixers, in order."""
        return tuple(kept.fixer.name for kept in self.kept)

    @property
    def edited(self) -> dict[str, str]:
        """The files that differ from the original."""
        return {path: text for path, text in self.texts.items() if text != self.known.sources.get(path)}

    @property
    def patch(self) -> patch.Patch:
        """All kept fixes together, against the user's files."""
        return patch.make(self.edited, self.program.root)

    @property
    def bitwise(self) -> bool:
        """Whether every kept fix promised to change no bit."""
        return all(kept.fixer.gate is Gate.BITWISE for kept in self.kept)

    def diff(self, answer: Edits) -> str:
        """What an answer changes on top of this."""
        return patch.diff(self.texts, answer.files, self.program.root)

    def request(self, finding: Finding, setting: Mapping[str, Scalar] | None = None) -> Request:
        """What a fixer may look at."""
        entry = str(self.program.entry) if self.program.entry else None
        return Request(finding, self.texts, self.known.sites, self.known.facts, setting or {}, entry)

    def with_fix(self, fixer: Fixer, finding: Finding, setting: Mapping[str, Scalar], answer: Edits) -> Stack:
        """One fix more."""
        lines = LineMap.between(self.texts, answer.files)
        sites = tuple(replace(site, line=lines.line(site.file, site.line)) for site in self.known.sites)
        kept = (*self.kept, Kept(fixer, finding, setting, self))
        return replace(self, known=replace(self.known, sites=sites), texts={**self.texts, **answer.files}, kept=kept)

    def without(self, name: str) -> Stack | None:
        """The other fixes alone, each made again where its lines now are; None where one of them needs this one."""
        at = self.names.index(name)
        stack: Stack | None = self.kept[at].below
        for later in self.kept[at + 1 :]:
            stack = stack and stack._again(later)
        return stack

    def _again(self, kept: Kept) -> Stack | None:
        others = {path: text for path, text in self.texts.items() if text != kept.below.texts.get(path)}
        finding = moved(kept.finding, LineMap.between(kept.below.texts, others), self.texts)
        try:
            answer = kept.fixer.rewrite(self.request(finding, kept.setting))
        except Exception:  # noqa: BLE001 - a fixer may be the user's own; what it cannot do here is answer enough
            return None
        return self.with_fix(kept.fixer, finding, kept.setting, answer) if isinstance(answer, Edits) else None


def moved(finding: Finding, lines: LineMap, texts: Mapping[str, str]) -> Finding:
    """The finding with its places where their lines went, and the code that stands there now."""
    places = []
    for place in finding.where:
        line = lines.line(place.file, place.line)
        text = texts.get(place.file, "").splitlines()
        code = text[line - 1].strip() if place.code is not None and 0 < line <= len(text) else place.code
        places.append(replace(place, line=line, code=code))
    return replace(finding, where=tuple(places))
