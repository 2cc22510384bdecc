"""The diagnosed run's knowledge of the program, which fixers may use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.collect.records import LOADED
from diagnose.compose.stack.asking_time import AskingTime
from diagnose.errors import InputError
from diagnose.model import Diagnosis, Facts, Site
from diagnose.program import Program
from diagnose.program.reached_files import read_reached
from diagnose.program.source import read_source
from diagnose.trace import Trace


@dataclass(frozen=True)
class RunContext:
    """The user's files, construct sites and facts."""

    sources: Mapping[str, str]
    """The user's own files, also the config files that the program names: absolute path → text."""
    sites: tuple[Site, ...] = ()
    facts: Facts = field(default_factory=Facts)
    traces: tuple[Trace, ...] = ()
    asking: AskingTime = field(default_factory=AskingTime, compare=False)
    """The time that fixers may take to look at the files; all states of the program share it."""


def knowledge(
    program: Program, diagnosis: Diagnosis, traces: Sequence[Trace], budget_ns: int | None = None
) -> RunContext:
    """Return what fixers may look at: the user's files that the run touched or reaches, construct sites and facts.

    `budget_ns` is the time for all that is done with it, of which asking the fixers gets a share.
    """
    asking = AskingTime.of(budget_ns)
    recorded = (replace(site, file=absolute(program, site.file)) for trace in traces for site in trace.sites)
    known = {_identity(site): site for site in recorded}.values()
    loaded = [site.file for site in known if site.kind == LOADED and site.owned]
    unique = tuple(site for site in known if site.kind != LOADED)
    paths: dict[str, None] = {}
    if program.entry is not None:
        paths[str(program.entry)] = None
    paths |= dict.fromkeys(site.file for site in unique if site.owned)
    named = [place.file for finding in diagnosis.findings for place in finding.where]
    for trace in traces:
        named += [frame.file for stack in trace.stacks for frame in stack if frame.owned]
        named += [site.file for site in trace.sync_sites or ()]
    paths |= dict.fromkeys(absolute(program, file) for file in named)
    sources = _read(program, paths)
    sources |= read_reached(program, sources)
    sources |= _read(program, [path for path in loaded if path not in sources])  # imported by computed names
    facts = traces[0].facts if traces else Facts()
    return RunContext(sources, unique, facts, tuple(traces), asking)


def _read(program: Program, paths: Iterable[str]) -> dict[str, str]:
    """Return the texts of those files that are the user's."""
    sources: dict[str, str] = {}
    for path in paths:
        if program.owned(path):
            try:
                sources[path] = read_source(Path(path)).text
            except InputError:
                continue  # a frame may name a file that is no file: `<string>`, a notebook cell
    return sources


def absolute(program: Program, file: str) -> str:
    """One spelling for each file: recordings may name it relative to where the program ran."""
    return os.path.normpath(program.cwd / file)


def _identity(site: Site) -> tuple[object, ...]:
    return (site.kind, site.file, site.line, site.function, tuple(sorted(site.arguments.items())))
