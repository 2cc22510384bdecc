"""`diagnose.analyze`: recordings, diagnosed, from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.engine import diagnose
from diagnose.errors import UsageError
from diagnose.measure.profile.step_profile import slowest_profile
from diagnose.model import Diagnosis, Facts, Finding, StepProfile
from diagnose.plugins import load_rules
from diagnose.program.atomic import write_atomic
from diagnose.program.settings import drop_ignored, settings_of
from diagnose.report import formats
from diagnose.report.style.vocabulary import named_count
from diagnose.report.terminal.text import WIDTH, render
from diagnose.report.wording.phrases import gain, is_priced
from diagnose.session import State
from diagnose.trace.readers import open_traces
from diagnose.units import format_ns

if TYPE_CHECKING:
    from diagnose.trace import Trace

AnyPath = str | os.PathLike[str]

_FRAME_HEIGHT_PX = 640


@dataclass(frozen=True, repr=False)
class Analysis:
    """A diagnosis that prints itself: as a line (`repr`), as the report in text (`str`), in notebooks as a page."""

    diagnosis: Diagnosis
    profile: StepProfile | None = None
    """Kernels, operators and a timeline of the slowest rank; None where no step was traced."""
    watched: tuple[Facts, ...] = ()
    """The facts of processes that were watched, which say whether there is a device; none for other recordings."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes of slow steps, sorted by the time that fixing each could give back."""
        return self.diagnosis.findings

    def text(self, width: int = WIDTH, colour: bool = False) -> str:
        """The report that `diagnose analyze` prints, in lines of at most `width` columns."""
        return render(replace(self._state, profile=None), width=width, colour=colour)

    def to_dict(self) -> dict[str, Any]:
        """The object that `diagnose analyze --json` prints, as plain dicts, lists, strings, numbers and None."""
        plain: dict[str, Any] = json.loads(formats()["json"].render(self.diagnosis))
        return plain

    def html(self) -> str:
        """The report as one self-contained page."""
        return formats()["html"].render(self._state)

    def save(self, path: AnyPath) -> None:
        """Write the report in the format that the file's name says: `.html`, `.md`, `.json`, `.sarif`, `.xml`, `.txt`.

        Raises UsageError for another name.
        """
        by_suffix = {report.suffix: report for report in formats().values() if report.name != "github"}
        report = by_suffix.get(Path(path).suffix)
        if report is None:
            raise UsageError(f"cannot tell a format from {Path(path).name}; end it in {', '.join(sorted(by_suffix))}")
        write_atomic(Path(path), (report.render(self._state).rstrip("\n") + "\n").encode())

    @property
    def _state(self) -> State:
        return State(diagnosis=self.diagnosis, profile=self.profile, facts=dict(enumerate(self.watched)))

    def __repr__(self) -> str:
        steps = self.diagnosis.steps
        if not steps.count:
            return "<Analysis: no step was counted>"
        length = f" of {format_ns(steps.median_ns)}" if steps.median_ns is not None else ""
        said = [named_count(steps.count, "step") + length, named_count(len(self.findings), "finding")]
        if self.findings:
            first = self.findings[0]
            said.append(f"first {first.rule}" + (f", gives back {gain(first)}" if is_priced(first) else ""))
        return f"<Analysis: {'; '.join(said)}>"

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_html_(self) -> str:
        # Without the timeline: a notebook keeps what it shows, and the timeline is most of a page's size.
        profile = replace(self.profile, timeline=None) if self.profile is not None else None
        page = formats()["html"].render(replace(self._state, profile=profile))
        style = f"width:100%;height:{_FRAME_HEIGHT_PX}px;border:0"
        return f'<iframe style="{style}" srcdoc="{escape(page, quote=True)}"></iframe>'


def analyze(paths: AnyPath | Iterable[AnyPath], *, rules: AnyPath | None = None) -> Analysis:
    """Diagnose recordings or a run folder, as `diagnose analyze` does.

    Several paths, or a folder of files, are the ranks of one job. `rules` is a folder of further rules. What
    `[tool.diagnose]` of the working directory's project ignores is left out. Raises InputError where a path cannot be
    read.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise UsageError("there is nothing to analyze: name a recording or a run folder")
    return analysis_of(open_traces([Path(path) for path in given]), Path(rules) if rules is not None else None)


def analysis_of(traces: Sequence[Trace], rules: Path | None = None) -> Analysis:
    """Ranks that were read, diagnosed."""
    catalogue = load_rules(rules)
    problems = tuple(f"{problem.module} was left out: {problem.message}" for problem in catalogue.problems)
    diagnosis = drop_ignored(diagnose(traces, catalogue), settings_of(Path.cwd()))
    diagnosis = replace(diagnosis, warnings=(*problems, *diagnosis.warnings))
    return Analysis(diagnosis, slowest_profile(traces, diagnosis), watched_facts(traces))


def watched_facts(traces: Sequence[Trace]) -> tuple[Facts, ...]:
    """Return the facts of the processes that were watched live, a rank each."""
    return tuple(trace.facts for trace in traces if trace.facts.torch_version is not None)
