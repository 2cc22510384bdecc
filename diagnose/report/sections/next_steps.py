"""The commands to type next, the most useful first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnose.errors import ProgramFailed
from diagnose.model import Decision
from diagnose.report.sections.run_outcome import cut_short, found_without_edits, interrupted
from diagnose.report.sections.verdict_table import is_dry, not_allowed, out_of_time, undecided
from diagnose.report.wording.health import is_quiet
from diagnose.session import State

_FEW = 3  # fixers named in one sentence; of more, the first two and how many


def next_command(state: State) -> tuple[str, str] | None:
    """Return the next command and what it does; None when there is nothing left to do."""
    return next(iter(next_commands(state)), None)


def next_commands(state: State) -> list[tuple[str, str]]:
    """All that is worth typing, each once with why: what was made first, then what a further run would try, else what
    tells how to go on by hand.
    """
    found: dict[str, list[str]] = {}
    for command, why in (*_applying(state), *(_fixing(state) if state.verdicts else _beginning(state))):
        found.setdefault(command, []).append(why)
    for command, why in _by_hand(state) if not found else ():
        found[command] = [why]
    return [(command, "; ".join(reasons)) for command, reasons in found.items()]


def _by_hand(state: State) -> Iterator[tuple[str, str]]:
    """Where something weighty was found and no fix of it is left to try: what is known of the first finding."""
    diagnosis = state.diagnosis
    goes_on = state.started is not None and state.ended is None
    if diagnosis is None or is_quiet(diagnosis) or goes_on or (state.ended is not None and state.ended.exit_code != 0):
        return
    for finding in diagnosis.findings[:1]:
        yield f"diagnose explain {finding.rule}", "says what helps by hand"


def _applying(state: State) -> Iterator[tuple[str, str]]:
    """Write the patch, unless the last runs show no saving: then measure again first."""
    if state.patch is None or not state.patch.diff or cut_short(state):
        return
    alone, taken_back = state.final, "`diagnose revert` takes it back byte for byte"
    if alone is not None and alone.patched_ns >= alone.original_ns and state.started is not None:
        yield f"diagnose fix {state.started.program}", "measures again: run alone, the patched program was no faster"
        yield "diagnose apply", f"writes this diff to your files all the same; {taken_back}"
        return
    yield "diagnose apply", f"writes this diff to your files; {taken_back}"


def _fixing(state: State) -> Iterator[tuple[str, str]]:
    """Yield the steps after a run that tried fixes, or would have."""
    if state.started is None:
        return
    program = state.started.program
    asked = [verdict.fixer for verdict in not_allowed(state)]
    allowing = (f"diagnose fix --allow training {program}", f"tries {_named(asked)} too, which changes the training")
    if is_dry(state):
        promised = sum(verdict.decision is Decision.NOT_TRIED for verdict in state.verdicts) - len(asked)
        if promised:
            them, each = ("them on copies", "each") if promised > 1 else ("it on a copy", "it")
            yield f"diagnose fix {program}", f"tries {them} of your files and measures {each}"
        if asked:
            yield allowing
        return
    if state.ended is None:
        return
    if interrupted(state):
        yield f"diagnose fix {program}", "tries them again; with --budget 5m it ends within that time by itself"
        return
    if late := [verdict.fixer for verdict in out_of_time(state)]:
        yield f"diagnose fix {program}", f"without a --budget has the time for {_named(late)}"
    if asked:
        yield allowing
    if not late and (open_still := [verdict.fixer for verdict in undecided(state)]):
        yield f"diagnose fix {program}", f"re-run on a quiet machine to settle {_named(open_still)}"


def _beginning(state: State) -> Iterator[tuple[str, str]]:
    """Yield the steps after a diagnosis alone."""
    diagnosis = state.diagnosis
    if diagnosis is None or is_quiet(diagnosis) or found_without_edits(state):
        return
    failed = state.ended is not None and state.ended.exit_code == ProgramFailed.exit_code
    if failed and not any(finding.rule == "memory-pressure" for finding in diagnosis.findings):
        return  # what the program says of its failure comes first; want of memory is something that fixes are for
    if fixers := list(dict.fromkeys(name for finding in diagnosis.findings for name in finding.fixers)):
        program = state.started.program if state.started and state.started.command != "analyze" else "SCRIPT"
        yield (
            f"diagnose fix {program}",
            f"tries {_named(fixers)} on a copy, where {'they have' if len(fixers) > 1 else 'it has'} an edit",
        )


def _named(fixers: Sequence[str]) -> str:
    if len(fixers) <= _FEW:
        return ", ".join(fixers)
    return f"{', '.join(fixers[: _FEW - 1])} and {len(fixers) - _FEW + 1} more"
