"""A stack kept on disk, so that some of its fixes can be taken without the others.

stack.json   what it takes to ask the kept fixers again: program, sites, facts, and for each its findings and setting

A later fix may rest on lines that an earlier one wrote (an import, a renamed call), so that leaving one out takes more
than leaving out its hunks: each fixer is asked again for the program without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.errors import InputError
from diagnose.fixer import Edits, Fixer
from diagnose.model import Facts, Finding, Scalar, Site
from diagnose.program import Program
from diagnose.program.atomic import write_atomic
from diagnose.program.patch import Patch
from diagnose.program.source import read_source

STACK = "stack.json"


@dataclass(frozen=True)
class _Fix:
    fixer: str
    setting: dict[str, Scalar]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Stored:
    words: tuple[str, ...]
    kind: str
    entry: str | None
    cwd: str
    root: str
    files: tuple[str, ...]
    sites: tuple[Site, ...]
    facts: Facts
    kept: tuple[_Fix, ...]


def store(stack: Stack, folder: Path) -> None:
    """Keep in a run folder what the fixes of a stack came from."""
    first = stack.kept[0].below if stack.kept else stack
    program = stack.program
    stored = _Stored(
        program.words,
        program.kind,
        str(program.entry) if program.entry else None,
        str(program.cwd),
        str(program.root),
        tuple(stack.known.sources),
        first.known.sites,
        stack.known.facts,
        tuple(_Fix(kept.fixer.name, dict(kept.setting), kept.findings) for kept in stack.kept),
    )
    write_atomic(folder / STACK, msgspec.json.encode(stored))


def names(folder: Path) -> tuple[str, ...]:
    """The kept fixers of a run folder, in order. Raises InputError where it does not say."""
    return tuple(fix.fixer for fix in _read(folder).kept)


def leave_out(folder: Path, whole: Patch, left_out: Collection[str], fixers: Mapping[str, Fixer]) -> Patch:
    """The patch of a run folder with some fixes left out; the user's files must be as they were when it was measured.

    Raises InputError where the fixers of today do not make the whole patch again, or where one that stays needs one
    that goes.
    """
    stored = _read(folder)
    if Path(stored.root) != whole.root:
        raise InputError(folder, f"was measured in {stored.root}; where the program was moved to, it is all or nothing")
    everything = _built(folder, stored, (), fixers)
    made = {change.path: change.after for change in everything.patch.changes}
    same = made == {change.path: change.after for change in whole.changes} and everything.patch.command == whole.command
    if not same:
        raise InputError(
            folder, "cannot be taken apart: its fixers no longer make the same patch; run `diagnose fix` again"
        )
    return _built(folder, stored, left_out, fixers).patch


def _built(folder: Path, stored: _Stored, left_out: Collection[str], fixers: Mapping[str, Fixer]) -> Stack:
    entry = Path(stored.entry) if stored.entry else None
    program = Program(stored.words, stored.kind, entry, Path(stored.cwd), Path(stored.root))  # type: ignore[arg-type]
    texts = {path: read_source(Path(path)).text for path in stored.files if Path(path).exists()}
    stack = Stack.of(program, RunContext(texts, stored.sites, stored.facts))
    gone = Stack.of(program, stack.known)  # the same with every fix in it: where lines were when a finding was placed
    for fix in stored.kept:
        if fix.fixer not in fixers:
            raise InputError(folder, f"{fix.fixer} is no fixer here; name its folder with --fixers")
        fixer = fixers[fix.fixer]
        answer = gone.answer(fixer, fix.findings, fix.setting)
        if not isinstance(answer, Edits):
            raise InputError(folder, f"cannot be taken apart: {fix.fixer} no longer makes its change")
        below, gone = gone, gone.with_fix(fixer, fix.findings, fix.setting, answer)
        if fix.fixer in left_out:
            continue
        again = stack.with_again(replace(gone.kept[-1], below=below))
        if again is None:
            needs = ", ".join(name for name in gone.names[:-1] if name in left_out)
            raise InputError(folder, f"{fix.fixer} builds on {needs}: take both, or neither")
        stack = again
    return stack


def _read(folder: Path) -> _Stored:
    try:
        return msgspec.json.decode((folder / STACK).read_bytes(), type=_Stored)
    except OSError as error:
        raise InputError(folder, "does not say what each fix came from; only its whole patch can be applied") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(folder / STACK, f"is damaged ({error}); run `diagnose fix` again") from error
