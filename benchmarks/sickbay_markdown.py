"""Formats the results of `diagnose fix` on the sick bay as the tables of benchmarks/RESULTS.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for two-sided 95 % intervals, by number of readings."""
_COMMON = "all together"
"""The name under which a journal tells of a trial of many fixes: each of them has a verdict of its own."""
_Record = Mapping[str, Any]


def markdown(results: _Record) -> str:
    """All tables of what is recorded so far."""
    programs: dict[str, _Record] = results["programs"]
    lines = [heading(results), "", *_outcomes(programs), "", *_summary(programs), "", *_fixes(programs)]
    return "\n".join([*lines, "", *_times(programs)]) + "\n"


def heading(results: _Record) -> str:
    """Device, versions and date."""
    devices = [of["fix"].get("device") for of in results["programs"].values() if of.get("fix")]
    device: _Record = next(filter(None, devices), {})
    name, torch = device.get("device_name") or "CPU", device.get("torch_version") or "?"
    return f"{name} · Python {results['python']}, torch {torch} · {results['recorded']}."


def speedup(timing: _Record, faster: str, slower: str, work: float = 1) -> tuple[float, float, float] | None:
    """Return the speed-up of one side over the other, with its 95 % interval over paired rounds."""
    pairs = list(zip(timing["rounds"].get(slower, []), timing["rounds"].get(faster, []), strict=False))
    if not pairs:
        return None
    logs = [math.log(before / after) for before, after in pairs]
    mean = statistics.fmean(logs)
    reach = math.inf
    if len(logs) > 1:
        reach = _T_95.get(len(logs), 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = (math.exp(mean - reach), math.exp(mean + reach)) if math.isfinite(reach) else (0.0, math.inf)
    return work * math.exp(mean), work * low, work * high


def reached(record: _Record) -> tuple[float, float, float] | None:
    """The throughput of the fixed program, as a share of the expert's."""
    timing = record.get("timing")
    if not timing or "expert" not in timing["rounds"]:
        return None
    return speedup(timing, "fixed" if "fixed" in timing["rounds"] else "found", "expert", 1 / record["expert_work"])


def _outcomes(programs: Mapping[str, _Record]) -> Iterator[str]:
    yield "| program | as found | fixed | expert's | fixed, of as found | of the expert's | kept |"
    yield "|---|---|---|---|---|---|---|"
    for name, record in programs.items():
        fix, timing = record.get("fix") or {}, record.get("timing")
        kept = ", ".join(f"`{fixer}`" for fixer in fix.get("kept", [])) or "nothing"
        advice = [one["fixer"] for one in last_words(fix).values() if one["decision"] == "advice"]
        if advice:
            kept += f"; advice: {', '.join(f'`{fixer}`' for fixer in advice)}"
        problem = next(filter(None, [(timing or {}).get("problem"), fix.get("problem")]), None)
        if problem:
            kept += f" ({problem})"
        if not timing or not timing["rounds"]:
            yield f"| `{name}` | | | | | | {kept} |"
            continue
        steps = [_step(timing, arm) for arm in ("found", "fixed", "expert")]
        won = speedup(timing, "fixed", "found")
        yield f"| `{name}` | {' | '.join(steps)} | {_ratio(won, '×')} | {_ratio(reached(record), '%')} | {kept} |"


def _step(timing: _Record, arm: str) -> str:
    rounds = timing["rounds"].get(arm)
    if arm == "fixed" and not rounds:
        return "as found"
    return f"{statistics.median(rounds) / 1e6:.2f} ms" if rounds else ""


def _ratio(found: tuple[float, float, float] | None, unit: str) -> str:
    if found is None:
        return ""
    if unit == "%":
        share, low, high = (100 * one for one in found)
        return f"{share:.1f} % [{low:.1f}, {high:.1f}]"
    times, low, high = found
    return f"{times:.2f}× [{low:.2f}, {high:.2f}]"


def _summary(programs: Mapping[str, _Record]) -> Iterator[str]:
    shares = {name: share[0] for name, record in programs.items() if (share := reached(record))}
    if shares:
        below = [f"`{name}` ({share:.1%})" for name, share in shares.items() if share < 0.95]
        yield (
            f"Of the expert's throughput: median {statistics.median(shares.values()):.1%} of {len(shares)} programs; "
            f"below 95 %: {', '.join(below) or 'none'}."
        )
    fixed = [record["fix"] for record in programs.values() if record.get("fix")]
    last = [verdict for fix in fixed for verdict in last_words(fix).values()]
    failing = [one for one in last if one["decision"] == "kept" and (one["gate"] or {}).get("passed") is not True]
    applied = [fix for fix in fixed if fix["applied"] is not None]
    yield (
        f"Kept fixes whose gate did not pass or could not be checked: {len(failing)} of "
        f"{sum(one['decision'] == 'kept' for one in last)}. Programs untouched by `fix`: "
        f"{sum(fix['untouched'] for fix in fixed)} of {len(fixed)}; reverted to the byte: "
        f"{sum(bool(fix['reverts']) for fix in applied)} of {len(applied)} patched."
    )


def last_words(fix: _Record) -> dict[str, _Record]:
    """The verdict that stands on each fixer; advice stands only where there is nothing else."""
    found: dict[str, _Record] = {}
    for verdict in fix.get("tried", []):
        if verdict["fixer"] == _COMMON:
            continue
        if verdict["decision"] != "advice" or verdict["fixer"] not in found:
            found[verdict["fixer"]] = verdict
    return found


def _fixes(programs: Mapping[str, _Record]) -> Iterator[str]:
    yield "| program | fix | decision | saved per step, 95 % interval | in ms | predicted | gate |"
    yield "|---|---|---|---|---|---|---|"
    for name, record in programs.items():
        told: set[str] = set()
        for verdict in (record.get("fix") or {}).get("tried", []):
            if verdict["decision"] != "advice":
                yield f"| `{name}` | {_fix_cells(verdict, 'as above' if verdict['summary'] in told else '')} |"
                told.add(verdict["summary"])


def _fix_cells(verdict: _Record, instead: str) -> str:
    """A row's cells; `instead` stands in the place of a reason that a row above has given already."""
    knobs = ", ".join(f"{knob}={value}" for knob, value in (verdict["setting"] or {}).items())
    saving, gate, predicted = verdict["saving"], verdict["gate"] or {}, verdict["predicted_ns"]
    words = {True: "held", False: "failed", None: "not checked"}[gate.get("passed")] if gate else ""
    cells = [
        f"`{verdict['fixer']}`{f' {knobs}' if knobs else ''}",
        verdict["decision"] if saving else f"{verdict['decision']}: {instead or verdict['summary']}".replace("|", "/"),
        f"{saving['estimate']:.1%} [{saving['low']:.1%}, {saving['high']:.1%}]" if saving else "",
        f"{verdict['saving_ns'] / 1e6:.2f}" if verdict["saving_ns"] is not None else "",
        f"{'at most ' if verdict['prediction'] == 'bound' else ''}{predicted / 1e6:.2f}" if predicted else "",
        f"{gate.get('gate', '')}: {words}" if gate else "",
    ]
    return " | ".join(cells).replace("\n", " ")


def _times(programs: Mapping[str, _Record]) -> Iterator[str]:
    yield "| program | `fix` took | of which | timing took |"
    yield "|---|---|---|---|"
    for name, record in programs.items():
        fix, timing = record.get("fix"), record.get("timing")
        if fix:
            timed = f"{timing['seconds']:.0f} s" if timing else ""
            yield f"| `{name}` | {fix['seconds']:.0f} s | {_where(fix['spans'])} | {timed} |"


def _where(spans: Sequence[tuple[str, float]]) -> str:
    """Seconds by kind of work, over all trials."""
    kinds: dict[str, float] = {}
    for what, seconds in spans:
        kind = what.rpartition(": ")[2]
        kinds[kind] = kinds.get(kind, 0) + seconds
    most = sorted(kinds.items(), key=lambda one: -one[1])
    return ", ".join(f"{kind} {seconds:.0f} s" for kind, seconds in most if seconds >= 1)
