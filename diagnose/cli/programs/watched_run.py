"""The common part of `run`, `fix` and `demo`: a session, a screen or plain lines, a watched program, perhaps trials."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import diagnose
from diagnose import compose
from diagnose.cli.programs import background
from diagnose.cli.programs.argv_split import Split, program_of
from diagnose.cli.programs.ending import INTERRUPTED, PROGRAM_FAILED, error_of, judge_exit, ran_out_of_memory
from diagnose.cli.programs.fixer_selection import limit_fixers, names_in
from diagnose.cli.programs.preconditions import on_one_host, require_torch
from diagnose.cli.recordings.findings import terminal_width, wants_colour
from diagnose.cli.screen_actions import RunActions, start_fix
from diagnose.cli.streams import has_screen, result, standard_output_to_stderr, talk
from diagnose.collect.recipe import Recipe
from diagnose.errors import Cancelled, DiagnoseError, UsageError
from diagnose.model import Gate
from diagnose.observe import Observation, observe
from diagnose.plugins import Catalogue, load
from diagnose.probing.choice import Probing
from diagnose.probing.trial import run_probes
from diagnose.program import Program
from diagnose.report import PAGE, formats
from diagnose.report.style.vocabulary import named_count
from diagnose.report.terminal import probes, text
from diagnose.report.terminal.progress import Progress
from diagnose.session import AnyEvent, RunEnded, RunStarted, Session, State, Warned
from diagnose.trial.schedule import Schedule
from diagnose.trial.skip_request import SkipRequest
from diagnose.units import NS_PER_S, format_ns, parse_duration_ns, printable

DEFAULT_BUDGET, NO_BUDGET = "10m", "none"
CLOSING_NS = 3 * NS_PER_S
"""The part of a budget that ends processes, removes copies and writes the report; starting Python counts too."""

Tell = Callable[[AnyEvent], None]


@dataclass(frozen=True)
class Fixing:
    """Settings of the trials that follow the diagnosis."""

    budget_ns: int | None = None
    allow_training: bool = False
    quick: bool = False
    only: tuple[str, ...] = ()
    """The fixers that the user named; empty for all."""
    dry: bool = False
    """Tell what would be tried, and try nothing."""

    @property
    def allow(self) -> frozenset[Gate]:
        """Classes of fixes that may be tried."""
        return frozenset(Gate) if self.allow_training else compose.WITHOUT_ASKING

    def after(self, spent_ns: int) -> Fixing:
        """Return the settings with the rest of the budget, which bounds the whole command from the start of the
        program.
        """
        return self if self.budget_ns is None else replace(self, budget_ns=max(0, self.budget_ns - spent_ns))


class Watching:
    """One command on one program."""

    def __init__(self, program: Program, recipe: Recipe, catalogue: Catalogue, command: str, root: Path | None = None):
        require_torch()
        self.program = program
        self.recipe = recipe
        self.catalogue = catalogue
        self.command = command
        self.probing: Probing | None = None
        """The probes to run once the program is diagnosed."""
        self.state = State()
        self.session = Session.create(program.name, self._happened, root)
        self._show: Tell = lambda _event: None
        self._stop = threading.Event()
        self.skip = SkipRequest()
        self._returncode: int | None = None

    def carry_out(self, fixing: Fixing | None, plain: bool, as_json: bool) -> int:
        """Watch the program, with `fixing` try fixes too, print the answer; returns the exit code."""
        wants_fix = detached = False
        try:
            with leaving_on(self._stop):
                if wants_screen(plain or as_json):
                    code, wants_fix, detached = self._on_screen(fixing)
                else:
                    with standard_output_to_stderr(as_json):
                        code = self._work(fixing, plain_lines(), on_screen=False)
        finally:
            self.session.close()
        if detached:
            return code
        result(self._answer(as_json))
        self._keep_page()
        if wants_fix:
            return start_fix(self.state)
        return code

    def _on_screen(self, fixing: Fixing | None) -> tuple[int, bool, bool]:
        """Work in a process of its own and show it here; returns the exit code, whether the user left to have fixes
        tried, and whether the work goes on without the screen.
        """

        def work(tell: Tell) -> int:
            self.session.hand_over()
            return self._work(fixing, tell, on_screen=True)

        def follow(show: Tell) -> int:
            self._show = show
            return behind.follow(self._happened, self._stop, self.skip)

        behind = background.start(work, self._stop, self.skip, self._keep_page)
        # Textual takes about 0.3 s to import: only a screen pays for it.
        from diagnose.tui.open import run_screen

        left = run_screen(follow, self._stop.set, RunActions(self.session.path, self.skip if fixing else None))
        if left.goes_on:
            behind.detach()
            talk(f"Detached: {printable(self.program.typed)} keeps running.")
            talk(f"View:   diagnose view {self.session.path.name}")
            talk(f"End:    kill {behind.pid}")
        return left.code, left.wants_fix, left.goes_on

    def _keep_page(self) -> None:
        """Leave the report in the run folder as a page too, and say where all of it lies."""
        if self.state.diagnosis is None or self.state.diagnosis.steps.count == 0:
            return
        page = self.session.write(PAGE, formats()["html"].render(self.state))
        if page is not None and page.is_relative_to(Path.cwd()):  # else it goes with the folder that it is in
            talk(f"Report: {page.relative_to(Path.cwd())}")
            talk("View:   diagnose view")

    def _answer(self, as_json: bool) -> str:
        if as_json:
            return formats()["json"].render(self.state)
        if self.command == "probe" and self.state.probes:
            return "\n" + probes.as_text(self.state.probes, terminal_width(), colour=wants_colour())
        # The program has written to the same place, and what it wrote last may not have ended its line.
        return "\n" + text.render(self.state, width=terminal_width(), colour=wants_colour())

    def _happened(self, event: AnyEvent) -> None:
        self.state = self.state.after(event)
        self._show(event)

    def _work(self, fixing: Fixing | None, show: Tell, on_screen: bool) -> int:
        self._show = show
        code, message = 1, "ended by an error of diagnose itself"
        try:
            code, message = self._observe_and_fix(fixing, on_screen)
        except (Cancelled, KeyboardInterrupt):
            code, message = INTERRUPTED, "interrupted"
        except DiagnoseError as error:
            code, message = error.exit_code, str(error)
            raise
        except OSError as error:
            message = f"ended where the machine refused something: {error}"
            raise
        finally:
            self.session.record(RunEnded(returncode=self._returncode, exit_code=code, message=message))
        return code

    def _observe_and_fix(self, fixing: Fixing | None, on_screen: bool) -> tuple[int, str]:
        began_ns = time.monotonic_ns()
        started = RunStarted(
            command=self.command,
            program=self.program.typed,
            cwd=str(self.program.cwd),
            version=diagnose.__version__,
            pid=os.getpid(),
            dry=fixing is not None and fixing.dry,
        )
        self.session.record(started)
        bounded = fixing or self.probing
        recipe = self.recipe if bounded is None else self.recipe.ending_within(bounded.budget_ns)
        seen = observe(self.program, recipe, self.session, self.catalogue, self._stop, on_screen)
        self._returncode = seen.outcome.returncode
        code, message = judge_exit(seen, self._stop.is_set(), error_of(self.session.path))
        spent_ns = time.monotonic_ns() - began_ns + CLOSING_NS
        left = fixing.after(spent_ns) if fixing is not None else None
        if code == 0 and self.probing is not None:
            message = self._probe(seen, self.probing.after(spent_ns))
        elif code == 0 and left is not None:
            message, _ = self._fix(seen, left)
        elif code == PROGRAM_FAILED and left is not None and ran_out_of_memory(seen):
            said, runs = self._fix(seen, left, died=True)
            code, message = (0, said) if runs else (code, f"{message}; {said}")
        return code, message

    def _fix(self, seen: Observation, fixing: Fixing, died: bool = False) -> tuple[str, bool]:
        """A word on what came of it, and whether there is a patch; `died`: memory ran out."""
        named = {name for finding in seen.diagnosis.findings for name in finding.fixers}
        if idle := [name for name in fixing.only if name not in named]:
            self.session.record(Warned(message=f"no finding of this run calls for {', '.join(idle)}: not tried"))
        if fixing.dry:
            compose.dry_run(
                self.program, seen.diagnosis, seen.traces, self.catalogue, self._record_unless_cancelled, fixing.allow
            )
            return "dry run: nothing was tried", False
        outcome = compose.fix(
            self.program,
            seen.diagnosis,
            seen.traces,
            self.catalogue,
            self._record_unless_cancelled,
            self.session.path,
            Schedule.quick() if fixing.quick else Schedule(),
            fixing.budget_ns,
            fixing.allow,
            died,
            self._stop.is_set,
            self.state.started.at_ns if self.state.started is not None else None,
            self.skip,
        )
        return compose.summary(outcome), outcome.patch is not None

    def _probe(self, seen: Observation, probing: Probing) -> str:
        """A word on what came of it."""
        chosen = probing.chosen(seen.diagnosis.findings)
        if not chosen:
            return "no probe would settle a finding of this run"
        results = run_probes(
            self.program,
            seen.diagnosis,
            seen.traces,
            chosen,
            self._record_unless_cancelled,
            self.session.path,
            Schedule.quick() if probing.quick else Schedule(),
            probing.budget_ns,
            self._stop.is_set,
            self.state.started.at_ns if self.state.started is not None else None,
        )
        return f"{named_count(sum(not one.refused for one in results), 'probe')} answered"

    def _record_unless_cancelled(self, event: AnyEvent) -> None:
        self.session.record(event)
        if self._stop.is_set():
            raise Cancelled


@contextlib.contextmanager
def leaving_on(stop: threading.Event) -> Iterator[None]:
    """A request to end, or a terminal that is gone, is the user leaving: copies are taken away, as after a Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    # What is ignored, as under nohup, or has a handler of somebody else's, stays so.
    mine = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def watching(args: argparse.Namespace, command: str, words: Split | None = None) -> Watching:
    """Return the settings of `run`, `fix` and `probe` from their arguments. `words` is the program's command line where
    the caller has found it. Raises UsageError, InputError or EnvironmentLacks.
    """
    words = words or program_of(args.words[1:], args.words[0])
    program = Program.parse(words.program, module=words.module, launcher=words.launcher)
    recipe = Recipe(args.steps, args.warmup, args.stop_after_trace, ranks=args.trace_ranks)
    catalogue = load(args.rules, args.fixers)
    only, skip = names_in(getattr(args, "only", None)), names_in(getattr(args, "skip", None))
    return Watching(program, recipe, limit_fixers(catalogue, only, skip) if only or skip else catalogue, command)


def fixing_of(args: argparse.Namespace) -> Fixing:
    """The options of `fix`. Raises UsageError for a budget that is no duration, and for a job on several hosts."""
    on_one_host(program_of(args.words[1:], args.words[0]))
    return Fixing(
        budget_of(args, DEFAULT_BUDGET),
        getattr(args, "allow", None) == "training",
        getattr(args, "quick", False),
        names_in(getattr(args, "only", None)),
        getattr(args, "dry_run", False),
    )


def probing_of(args: argparse.Namespace, names: tuple[str, ...], words: Split | None = None) -> Probing:
    """The options of `probe`; no names stand for those that would settle the top findings. Raises UsageError."""
    on_one_host(words or program_of(args.words[1:], args.words[0]))
    return Probing(names, budget_of(args, DEFAULT_BUDGET), getattr(args, "quick", False))


def budget_of(args: argparse.Namespace, default: str = NO_BUDGET) -> int | None:
    """The value of --budget in ns, or the default's; None for `none`. Raises UsageError for what is no duration, or an
    empty one."""
    said = args.budget or default
    try:
        budget_ns = parse_duration_ns(said) if said != NO_BUDGET else None
    except ValueError as error:
        raise UsageError(f"--budget: {error}") from error
    if budget_ns == 0:
        raise UsageError(f"--budget {said} leaves no time for anything; write for example 10m, or `none` for no limit")
    if budget_ns is not None and not said.strip()[-1].isalpha():
        talk(f"diagnose: --budget {said} is taken as {format_ns(budget_ns)}; write {said}m for minutes")
    return budget_ns


def wants_screen(plain: bool) -> bool:
    """Whether there is a terminal for a screen, and the user has not asked for lines."""
    return not plain and has_screen() and os.environ.get("TERM", "dumb") != "dumb"


def plain_lines() -> Tell:
    progress = Progress()

    def tell(event: AnyEvent) -> None:
        line = progress(event)
        if line is not None:
            talk(line if line.startswith("diagnose") else f"diagnose: {line}")

    return tell
