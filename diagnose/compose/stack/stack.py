"""The user's program as text, with the fixes kept so far in it, in the order in which they were kept."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnose.compose.stack.run_context import RunContext
from diagnose.fixer import Answer, Edits, Fixer, Request
from diagnose.model import Finding, Gate, Place, Scalar
from diagnose.program import Program, patch
from diagnose.program.command import command_line
from diagnose.source.rewrite.line_map import LineMap
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine, split_command
from diagnose.source.settings.configs import form_of
from diagnose.source.tree.text_lines import lines_in


@dataclass(frozen=True)
class Kept:
    """A fix in the stack, with what it takes to make its edits again."""

    fixer: Fixer
    findings: tuple[Finding, ...]
    """The findings that it treats, the heaviest first; their places are lines of `below`."""
    setting: Mapping[str, Scalar]
    below: Stack
    """The stack that it was put on."""
    together: bool = False
    """Whether the fix was tried together with others."""
    foreseen: bool = False
    """Whether what it treats was no finding yet: the others brought it to light."""
    tuned: bool = False
    """Whether the setting of the fix is final: the best of those that there was time for, or not chosen by time."""

    @property
    def where(self) -> tuple[Place, ...]:
        """The places of all its findings, each once."""
        return tuple(dict.fromkeys(place for finding in self.findings for place in finding.where))

    @property
    def promised_ns(self) -> int:
        """The saving that the fix's findings promise, summed, in ns per step."""
        return sum(finding.recoverable_ns for finding in self.findings)

    @property
    def promised_share(self) -> float:
        """The saving that the fix promised, as a share of the step that its findings were made in or are
        predicted of.
        """
        return sum(finding.share for finding in self.findings)


@dataclass(frozen=True)
class Stack:
    """Texts and recorded sites, all in the lines of the present state. The command line is one of the texts."""

    program: Program
    known: RunContext
    """The facts of the program: its sources stay those of the original, its sites move with the edits."""
    texts: Mapping[str, str]
    kept: tuple[Kept, ...] = field(default=())

    @classmethod
    def of(cls, program: Program, known: RunContext) -> Stack:
        """The original: nothing kept."""
        return cls(program, known, {**known.sources, **_command(program)})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the kept fixers, in order."""
        return tuple(kept.fixer.name for kept in self.kept)

    @property
    def edited(self) -> dict[str, str]:
        """The files that differ from the original."""
        found = {**self.known.sources, **_command(self.program)}
        return {path: text for path, text in self.texts.items() if text != found.get(path)}

    @property
    def patch(self) -> patch.Patch:
        """All kept fixes together, against the user's files."""
        return patch.make(self.edited, self.program.root, _command(self.program))

    @property
    def bitwise(self) -> bool:
        """Whether every kept fix promised to change no bit."""
        return all(kept.fixer.gate is Gate.BITWISE for kept in self.kept)

    def diff(self, answer: Edits) -> str:
        """Return the diff of an answer on top of this stack."""
        return patch.diff(self.texts, answer.files, self.program.root)

    def change(self, name: str) -> str:
        """Return the diff of one of the kept fixes on top of those before it."""
        at = self.names.index(name)
        above = self.kept[at + 1].below if at + 1 < len(self.kept) else self
        return patch.diff(self.kept[at].below.texts, above.texts, self.program.root)

    def as_found(self, finding: Finding) -> Finding:
        """The finding with its places in the user's files, which have none of the fixes in them."""
        return moved(finding, self._back(), self.known.sources)

    def as_found_in(self, text: str) -> str:
        """Words with the places in them (`/home/u/train.py:12`) in the user's files."""
        lines = self._back()
        for path in self.texts:
            back = functools.partial(_renumbered, path, lines)
            text = re.sub(rf"{re.escape(path)}:(\d+)", back, text)
        return text

    def _back(self) -> LineMap:
        return LineMap.between(self.texts, self.known.sources)

    def request(self, finding: Finding, setting: Mapping[str, Scalar] | None = None) -> Request:
        """Return the request for a fixer: what it may look at."""
        entry = str(self.program.entry) if self.program.entry else None
        files = {path: text for path, text in self.texts.items() if path != COMMAND_LINE}
        configs = {path: text for path, text in files.items() if form_of(path) is not None}
        sources = {path: text for path, text in files.items() if path not in configs}
        home = str(self.program.home) if self.program.home else None
        return Request(
            finding,
            sources,
            self.known.sites,
            self.known.facts,
            setting or {},
            entry,
            configs,
            self._words,
            home,
        )

    @property
    def _words(self) -> Sequence[str]:
        """The command line as the fixes so far have it; where it cannot be edited, as the user typed it."""
        line = command_line(self.program)
        if line is None or COMMAND_LINE not in self.texts:
            return self.program.words
        return CommandLine(split_command(self.texts[COMMAND_LINE]), line.own)

    def answer(self, fixer: Fixer, findings: Sequence[Finding], setting: Mapping[str, Scalar]) -> Answer:
        """Return a fixer's answer for all of these findings. A second edit that differs from the first is made on top
        of it.

        Advice or None only where it edits for none of them. Raises whatever the fixer raises.
        """
        made: Edits | None = None
        other: Answer = None
        for finding in findings:
            alone = fixer.rewrite(self.request(finding, setting))
            if not isinstance(alone, Edits):
                other = other or alone
            elif made is None:
                made = alone
            elif dict(alone.files) != dict(made.files):
                made = self._on_top(fixer, made, finding, setting)
        return made or other

    def _on_top(self, fixer: Fixer, made: Edits, finding: Finding, setting: Mapping[str, Scalar]) -> Edits:
        above = self.with_fix(fixer, (finding,), setting, made)
        there = moved(finding, LineMap.between(self.texts, made.files), above.texts)
        more = fixer.rewrite(above.request(there, setting))
        if not isinstance(more, Edits):
            return made
        summary = made.summary if more.summary == made.summary else f"{made.summary}; {more.summary}"
        boldest = max((made.gate or fixer.gate, more.gate or fixer.gate), key=lambda gate: gate.boldness)
        return Edits({**made.files, **more.files}, summary, boldest)

    def with_fix(
        self,
        fixer: Fixer,
        findings: tuple[Finding, ...],
        setting: Mapping[str, Scalar],
        answer: Edits,
        *,
        together: bool = False,
        foreseen: bool = False,
        tuned: bool = False,
    ) -> Stack:
        """One fix more; `together`: with others in one trial; `foreseen`: before what it treats was a finding; `tuned`:
        with a setting that stays."""
        return self._with(Kept(fixer, findings, setting, self, together, foreseen, tuned), answer)

    def _with(self, kept: Kept, answer: Edits) -> Stack:
        lines = LineMap.between(self.texts, answer.files)
        sites = tuple(replace(site, line=lines.line(site.file, site.line)) for site in self.known.sites)
        texts = {**self.texts, **answer.files}
        return replace(self, known=replace(self.known, sites=sites), texts=texts, kept=(*self.kept, kept))

    def leave_out(self, name: str) -> Stack | None:
        """The other fixes alone, each made again where its lines now are; None where one of them needs this one."""
        at = self.names.index(name)
        return _again(self.kept[at].below, self.kept[at + 1 :])

    def with_setting(self, name: str, setting: Mapping[str, Scalar]) -> Stack | None:
        """The stack with another setting of one fix; None where that has no edit or another fix needs the first."""
        at = self.names.index(name)
        other = self.kept[at].below.with_again(replace(self.kept[at], setting=setting))
        return other and _again(other, self.kept[at + 1 :])

    def with_again(self, kept: Kept) -> Stack | None:
        """A fix of another stack made anew on this one; None where its fixer no longer has an edit."""
        others = {path: text for path, text in self.texts.items() if text != kept.below.texts.get(path)}
        lines = LineMap.between(kept.below.texts, others)
        findings = tuple(moved(finding, lines, self.texts) for finding in kept.findings)
        try:
            answer = self.answer(kept.fixer, findings, kept.setting)
        except Exception:  # noqa: BLE001 - a fixer may be the user's own; what it cannot do here is answer enough
            return None
        if not isinstance(answer, Edits):
            return None
        return self._with(replace(kept, findings=findings, below=self), answer)


def _command(program: Program) -> dict[str, str]:
    """The command line as found, beside the texts of files; empty where it is not known what the program reads."""
    line = command_line(program)
    return {COMMAND_LINE: line.text} if line is not None else {}


def _renumbered(path: str, lines: LineMap, said: re.Match[str]) -> str:
    return f"{path}:{lines.line(path, int(said[1]))}"


def _again(stack: Stack | None, kept: Sequence[Kept]) -> Stack | None:
    """A stack with fixes of another one put on it anew; None where one of them no longer has an edit."""
    for one in kept:
        stack = stack and stack.with_again(one)
    return stack


def moved(finding: Finding, lines: LineMap, texts: Mapping[str, str]) -> Finding:
    """The finding with its places where their lines went, and the code that stands there now."""
    places = []
    for place in finding.where:
        line = lines.line(place.file, place.line)
        text = lines_in(texts.get(place.file, ""))
        code = text[line - 1].strip() if place.code is not None and 0 < line <= len(text) else place.code
        places.append(replace(place, line=line, code=code))
    return replace(finding, where=tuple(places))
