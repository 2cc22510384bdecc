"""Runs probes against the program as found, on copies that are gone in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.collect.experiments import Probe
from diagnose.model import Diagnosis, Interval, ProbeResult
from diagnose.probing.probe_comparison import bearing_on
from diagnose.program import Program
from diagnose.session import AnyEvent, PhaseChanged, Probed
from diagnose.session.owner import TRIALS, clear
from diagnose.trace import Trace
from diagnose.trial.ab.result import PATCHED, Comparison, Ending
from diagnose.trial.bench import Bench
from diagnose.trial.process.arm import Trouble
from diagnose.trial.process.process_group import never, undisturbed
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.standalone import ruling_on_failure
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import format_setting
from diagnose.verdict import LEAST_GENERATIONS, LEAST_PAIRS

NO_TIME = "the budget left no time for it"


def run_probes(
    program: Program,
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    probes: Sequence[Probe],
    record: Callable[[AnyEvent], None],
    folder: Path,
    schedule: Schedule,
    budget_ns: int | None = None,
    cancelled: Callable[[], bool] = never,
    began_ns: int | None = None,
) -> tuple[ProbeResult, ...]:
    """Return the measurements of all probes, with each of their settings, in this order. Each is reported as soon as it
    is known.

    `began_ns` is when the watched program was started, in ns since the epoch. Raises ProgramFailed where the program
    fails in an unchanged copy, and Cancelled, with nothing left running, soon after `cancelled` says so.
    """
    trials, found, step_ns = folder / TRIALS, [], diagnosis.average_step_ns
    deadline = Deadline.within(budget_ns)
    try:
        with Bench(
            program,
            trials,
            schedule,
            deadline,
            WatchedProgram.of(traces, began_ns, step_ns),
            on_phase=lambda phase, detail: record(PhaseChanged(phase=phase, detail=detail)),
            cancelled=cancelled,
        ) as bench:
            for result in _results(bench, probes, deadline, record, step_ns):
                probe = next(one for one in probes if one.name == result.probe)
                found.append(bearing_on(result, probe, diagnosis.findings))
                record(Probed(result=found[-1]))
    finally:
        with undisturbed():
            clear(trials, deadline.closing_ns)
    return tuple(found)


def _results(
    bench: Bench, probes: Sequence[Probe], deadline: Deadline, record: Callable[[AnyEvent], None], step_ns: int
) -> Iterator[ProbeResult]:
    original = bench.copy({}, "original")
    for probe in probes:
        for setting in probe.settings:
            left_ns = deadline.left_ns
            if left_ns is not None and left_ns < bench.check_ns():
                yield ProbeResult(probe.name, setting, refused=NO_TIME)
                continue
            record(PhaseChanged(phase=f"probing {probe.name}", detail=format_setting(setting)))
            probed = bench.probed_copy(probe.name, setting, compiles=probe.compiles)
            found = bench.probe(original, probed, f"probe-{probe.name}")
            result = result_of(probe.name, setting, found, bench.resolution)
            delayed = "delayed" in setting and not result.refused
            yield replace(result, delay_ns=round(setting["share"] * step_ns)) if delayed else result
            if _has_refused(found) and "delayed" not in setting:
                break  # it would refuse its other settings for the same reason


def result_of(name: str, setting: Mapping[str, Any], found: Comparison, resolution: float) -> ProbeResult:
    """A comparison in nanoseconds per step, or why there is none."""
    refused = _refusal(found)
    if refused:
        return ProbeResult(name, setting, refused=refused, pairs=len(found.pairs))
    assert found.saving is not None  # or there would be a reason
    saving = found.saving if found.generations >= LEAST_GENERATIONS else _widen(found.saving, resolution)
    return ProbeResult(
        probe=name,
        setting=setting,
        step_ns=found.step_ns,
        probed_ns=round(found.step_ns * (1 - saving.estimate)),
        saved_ns=(round(found.step_ns * saving.low), round(found.step_ns * min(saving.high, 1.0))),
        pairs=len(found.pairs),
        generations=found.generations,
        left=tuple(found.left),
        peak_memory_bytes=found.peak_bytes,
    )


def _widen(saving: Interval, resolution: float) -> Interval:
    """The interval of one generation, with what two processes of one program may differ by."""
    return Interval(saving.estimate, saving.low - resolution, saving.high + resolution)


def _has_refused(found: Comparison) -> bool:
    return found.failed is not None and found.failed[1].trouble is Trouble.REFUSED


def _refusal(found: Comparison) -> str:
    """Why there is no answer; empty where there is one."""
    if found.failed is not None:
        side, failure = found.failed
        if failure.trouble is Trouble.REFUSED:
            return str(failure)
        who = "the program with the probe" if side == PATCHED else "the program as found, beside the probe,"
        return f"{who} {ruling_on_failure(failure).summary}"
    if found.saving is None or len(found.pairs) < LEAST_PAIRS:
        if found.ending is Ending.OUT_OF_TIME:
            return "the budget left no time to end its trial"
        return "the program ends before it could be measured"
    return ""
