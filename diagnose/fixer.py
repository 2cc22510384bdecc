"""The interface of a fixer: a pure function from the user's source texts and one finding to edited texts, advice, or
nothing.

It writes nothing and runs nothing. A file in `fixers/` takes from here what it is made of, and from `diagnose.source`
what it needs to read and rewrite code. Its docstring is its documentation, under the headings *What it changes*, *Why
it helps*, *Fix safety*; it ends in `FIXER = Fixer(...)` with a source before, the same after, and sources it must leave
alone. Shared tests run them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.model import Confidence, Facts, Finding, Gate, Place, Scalar, Severity, Site
from diagnose.source.batches.loaders import LoadersFound, find_loaders
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.switches import Switches, Turn
from diagnose.source.settings.trainers import Trainer, trainers_of
from diagnose.source.settings.values import setting_of, word_for
from diagnose.source.tree.edits import Source, Splice, splice

__all__ = [
    "Advice",
    "Answer",
    "Edits",
    "Example",
    "Facts",
    "Finding",
    "Fixer",
    "Gate",
    "Request",
    "Scalar",
    "Site",
    "example_request",
    "lines_with",
    "word_diffs",
]


@dataclass(frozen=True)
class Request:
    """The input of a fixer: the finding, the user's files as text, and what the run recorded."""

    finding: Finding
    sources: Mapping[str, str]
    """The user's own files: path as recorded by the run → text."""
    sites: Sequence[Site] = ()
    facts: Facts = field(default_factory=Facts)
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    """One of the settings that `Fixer.settings` proposed; empty for a fixer without knobs."""
    entry: str | None = None
    """The script that was started, a key of `sources`; None for a module or a launcher whose file is unknown."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Config files of the user's that the program names (YAML, JSON, TOML): path → text."""
    words: Sequence[str] = ()
    """The command line of the program; what is given there wins over any default. It can be edited, under the path
    `COMMAND_LINE`, where it is a `CommandLine`."""
    home: str | None = None
    """The folder in which the program finds modules of its own first, where a new file can be put; None: unknown."""

    def set_by(
        self, value: cst.BaseExpression, path: str, source: Source, recorded: Scalar = None, *, switch: bool = False
    ) -> Setting | None:
        """Return the setting that determines an expression of a file; calls `setting_of` with all that this request
        knows.

        `switch`: whatever else reads it is to go with it.
        """
        readers = None if switch else ("DataLoader",)
        return setting_of(
            value, path, source, self.sources, recorded, configs=self.configs, words=self.words, readers=readers
        )

    def told(self, value: cst.BaseExpression) -> str | None:
        """The word of the command line that decides a variable or an attribute; None where none does."""
        return word_for(value, self.sources, self.words)

    def switches(self, kind: re.Pattern[str]) -> Switches:
        """The program's own switches for lines of a kind, which their code shows."""
        return Switches(self.sources, kind, self.configs, self.words)

    def turned(self, turns: Sequence[Turn]) -> dict[str, str]:
        """The new texts in which settings have the values that they are to have."""
        return self.edited((turn.setting.path, [turn.setting.to(turn.value)]) for turn in turns)

    def edited(self, edits: Iterable[tuple[str, Sequence[Splice]]]) -> dict[str, str]:
        """The new texts of the files that have edits, each edit made once."""
        by_file: dict[str, dict[Splice, None]] = {}
        for path, splices in edits:
            by_file.setdefault(path, {}).update(dict.fromkeys(splices))
        texts = {**self.sources, **self.configs}
        if isinstance(self.words, CommandLine):
            texts[COMMAND_LINE] = self.words.text
        return {path: splice(texts[path], list(splices)) for path, splices in by_file.items() if splices}

    def answer(
        self,
        edits: Iterable[tuple[str, Sequence[Splice]]],
        summary: str,
        gate: Gate | None = None,
        *,
        reasons: Collection[str] = (),
    ) -> Answer:
        """The edits, where any file has some; else the reasons why not as advice, each once, where there are any."""
        files = self.edited(edits)
        if files:
            return Edits(files, summary, gate)
        return Advice(" ".join(dict.fromkeys(reasons))) if reasons else None

    def loaders(self) -> LoadersFound:
        """The data loaders that the finding is about, else those that feed training."""
        return find_loaders(
            self.sources,
            self.sites,
            self.finding.where,
            self.configs,
            self.words,
            accelerated=self.facts.device_name is not None,
        )

    def trainers(self) -> tuple[Trainer, ...]:
        """The sites at which the program configures a library that holds the training loop."""
        return trainers_of(self.sources, self.configs, self.words)


@dataclass(frozen=True)
class Edits:
    """Whole new texts for some of the files."""

    files: Mapping[str, str]
    summary: str
    """A summary of the change, in one line, for people."""
    gate: Gate | None = None
    """The promise of these edits about the numbers, where it is another than the fixer's."""
    because: str = ""
    """Why they promise that, for people."""


@dataclass(frozen=True)
class Advice:
    """There is no line of the user's that can be edited safely; `text` says what to do by hand, and why not by us."""

    text: str


Answer = Edits | Advice | None
"""None: this finding gives the fixer nothing to do."""


@dataclass(frozen=True)
class Example:
    """A source before and after, or (after None) a source that must be left alone, with what the run would know."""

    before: str
    after: str | None
    request: Callable[[str], Request]
    """Makes the request for a text of the file."""


_MARK = re.compile(r"\{-(.*?)-\}|\{\+(.*?)\+\}", re.DOTALL)


def word_diffs(request: Callable[[str], Request], *texts: str, top: str = "") -> tuple[Example, ...]:
    """Examples of one request, each written as a word diff: `DataLoader(data{+, num_workers=4+})`.

    `{-old-}` is in the source before alone, `{+new+}` in the source after. A text without marks must be left alone.
    Each source begins with `top`.
    """
    sides = [(top + _MARK.sub(r"\1", text), top + _MARK.sub(r"\2", text)) for text in texts]
    return tuple(Example(before, after if after != before else None, request) for before, after in sides)


def example_request(
    rule: str,
    text: str,
    *,
    sites: Sequence[Site] = (),
    facts: Facts | None = None,
    setting: Mapping[str, Scalar] | None = None,
    lines: Sequence[int] = (),
) -> Request:
    """The request that a run of `train.py` with this text would lead to; `lines` are those that the finding names."""
    where = tuple(Place("train.py", line) for line in lines)
    finding = Finding(rule, Severity.HIGH, 0, 10_000_000, 0.5, Confidence.MEASURED, "as recorded", where=where)
    return Request(finding, {"train.py": text}, sites, facts or Facts(), setting or {}, "train.py", home="")


def lines_with(text: str, code: str) -> list[int]:
    """The numbers of an example's lines that have this code."""
    return [number for number, line in enumerate(text.splitlines(), 1) if code in line]


_COMPILATION = 6
_COMPILING = frozenset({_COMPILATION, 9})
"""Tens digits of the order classes for fixes that compile or capture a graph."""


@dataclass(frozen=True)
class Fixer:
    """One rewrite."""

    name: str
    """The change in kebab case."""
    rewrite: Callable[[Request], Answer]
    gate: Gate
    mechanism: str
    """The measure that must move for the gain to be believed: an accounting class (`idle.input`, `compute`), a sum of
    them where the gain may show in either (`compute+idle.launch`), or `sync_calls`."""
    settings: Callable[[Request], Sequence[Mapping[str, Scalar]]] = lambda _request: ({},)
    """The settings of its knobs that are worth a trial, cheapest first."""
    rounds_to: str | None = None
    """The number format that matrix operands are rounded to (`tf32`), when the fix does that: for the rounding gate,
    and for the training gate, which then also refuses what is wrong by far more than that."""
    changes_loading: bool = False
    """The fix changes who makes batches, or when: their order and contents are compared over whole passes."""
    examples: tuple[Example, ...] = field(default=(), repr=False)
    order: int = 50
    """Order class of composition: 10 environment, 20 syncs, 30 input, 40 precision, 50 kernels, 60 compile, 70 memory,
    80 communication, 90 graph capture."""
    conflicts: tuple[str, ...] = ()
    """Fixers that are never kept beside this one; it is enough that one of the two says so."""
    after: tuple[str, ...] = ()
    """Fixers that have their turn first, where they are candidates too: this one rests on what they do."""
    completes: tuple[str, ...] = ()
    """Fixers after which this one is tried even where its finding went with them: what they leave over comes too rarely
    for the few steps of a window."""
    lines_of: tuple[str, ...] = ()
    """Rules that tell what each line costs, and of whose findings it saves no more than the lines cost that it writes
    anew or calls there."""
    uncounted: bool = False
    """Whether the fix speeds work up or slows it down in a way that no finding counts: the predicted saving is then an
    estimate, not a bound."""
    whole_step: bool = False
    """Whether the fix may speed up all that a device computes: where that is most of the step, it is tried even if no
    finding names it, or if another fix removed its finding."""
    rules: tuple[str, ...] = ()
    """Rules whose findings it is tried for although they do not name it: for fixers that lie beside the project."""
    doc: str = ""
    """Filled by the loader from the module's docstring."""

    @property
    def compiles(self) -> bool:
        """Whether code runs after it that nobody wrote, compiled or recorded as a graph: what it changes late in a run
        no first step shows, and its programs take long to start."""
        return self.order // 10 in _COMPILING

    @property
    def brings_compiler(self) -> bool:
        """Whether a compiler runs at the start of its programs: to record a graph takes a few steps."""
        return self.order // 10 == _COMPILATION
