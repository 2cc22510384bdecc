"""Holds what a patched program left behind against what the original left."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.trial.whole_run import file_history
from diagnose.trial.whole_run.figures import SPREADS, Noise, Text, differences, least_move, read_text
from diagnose.trial.whole_run.observation import Observation
from diagnose.trial.whole_run.saved_objects import read_saved
from diagnose.trial.whole_run.told_options import Told

_WITH_DIGIT = re.compile(r"[A-Za-z0-9]*\d[A-Za-z0-9]*")


@dataclass(frozen=True)
class Original:
    """The reference of a comparison: one run, and other runs of the as-found program that show how its figures vary."""

    run: Observation
    found: Observation
    """The first run of the as-found program."""
    again: Sequence[Observation]
    """Other runs of it: equal ones, or ones whose weights were disturbed."""
    disturbed: float | None = None
    """The relative disturbance of the weights in the other runs; None for a fix that rounds as before."""


@dataclass(frozen=True)
class RunComparison:
    """The differences, and what could not be compared, in words."""

    differs: Sequence[str] = ()
    unknown: Sequence[str] = ()


def compare(
    original: Original, patched: Observation, *, losses: bool = True, told: Told | None = None
) -> RunComparison:
    """Everything that a user could see of two runs. `losses` False: of runs that were left in mid-step; `told`: what
    the program may say of options that a fix gave it otherwise."""
    if told:
        patched = patched.without(told)
        again = [one.without(told) for one in original.again]
        run, found = original.run.without(told), original.found.without(told)
        original = replace(original, run=run, found=found, again=again)
    before = original.run
    differs: list[str] = []
    unknown: list[str] = []
    if patched.returncode != before.returncode and all(
        one.returncode == original.found.returncode for one in original.again
    ):
        differs.append(f"exits with {_code(patched)} instead of {_code(before)}: {patched.last_words}")
    differs += differences(before.printed, patched.printed, _noise(original, "printed"))
    differs += [f"on stderr it {one}" for one in differences(before.errors, patched.errors, _noise(original, "errors"))]
    if not patched.records or not before.records:
        unknown.append("a process ended without its exit handlers, so losses and file events are unknown")
    elif losses:
        differs += _losses(original, patched)
    _compare_files(original, patched, differs, unknown)
    pairs = zip(before.histories, patched.histories, strict=False)
    for rank, (one, other) in enumerate(pairs):
        others = [run.histories[rank] for run in (original.found, *original.again) if rank < len(run.histories)]
        stable = all(run == others[0] for run in others)
        differs += file_history.differences(one, other, () if stable else others)
    if before.elsewhere or patched.elsewhere:
        shown = ", ".join((before.elsewhere or patched.elsewhere)[:2])
        unknown.append(f"files outside of the program's folder are not compared ({shown})")
    return RunComparison(differs, unknown)


def _noise(original: Original, stream: str) -> Noise:
    """Return what the figures of a stream do by themselves."""
    base: Text = getattr(original.found, stream)
    return Noise(base, [getattr(run, stream) for run in original.again], original.disturbed)


def _code(run: Observation) -> str:
    return "no exit code in time" if run.returncode is None else f"exit code {run.returncode}"


def _losses(original: Original, patched: Observation) -> list[str]:
    before, after = original.run.losses, patched.losses
    if len(before) != len(after):
        return [f"takes {len(after)} backward passes instead of {len(before)}"]
    others = [run.losses for run in original.again if len(run.losses) == len(original.found.losses) == len(before)]
    moved = 0.0
    for place, (one, other) in enumerate(zip(before, after, strict=True)):
        if one is None or other is None:
            continue
        own = original.found.losses[place] if place < len(original.found.losses) else None
        moves = [abs(own - value) for run in others if own is not None and (value := run[place]) is not None]
        moved = max([moved, *(move for move in moves if not math.isnan(move))])
        if one == other or (math.isnan(one) and math.isnan(other)) or (moved and original.disturbed is None):
            continue
        allowed = 0.0 if original.disturbed is None else SPREADS * moved + least_move(original.disturbed) * abs(one)
        if not abs(one - other) <= allowed:
            return [f"the loss of backward pass {place + 1} is {other:.9g} instead of {one:.9g}"]
    quiet = all(run.parameters == original.found.parameters for run in original.again)
    if original.disturbed is None and quiet and original.run.parameters != patched.parameters:
        return ["the final parameters differ"]
    return []


def _compare_files(original: Original, patched: Observation, differs: list[str], unknown: list[str]) -> None:
    before, after = original.run.files, patched.files
    # Names with a time or a process number in them: another one in each run, be it left early or not.
    restless = {name for run in original.again for name in run.files.keys() ^ original.found.files.keys()}
    shapes = set(map(_without_numbers, restless))
    for name in sorted((before.keys() | after.keys()) - restless):
        if name not in original.found.files and _without_numbers(name) in shapes:
            continue
        if name not in after:
            differs.append(f"does not leave {name}")
        elif name in before:
            _compare_file(name, original, patched, differs, unknown)
        elif not restless:
            differs.append(f"leaves {name}, which the original does not")
    if restless:
        unknown.append(f"names of files change from run to run ({min(restless)})")


def _without_numbers(name: str) -> str:
    """A name with a mark for each word that has a digit: `run-1795705293-ab12` and `run-1795705311-c3d4` are alike."""
    return _WITH_DIGIT.sub("#", name)


def _compare_file(name: str, original: Original, patched: Observation, differs: list[str], unknown: list[str]) -> None:
    one, other = original.run.files[name], patched.files[name]
    if _digest(one) == _digest(other):
        return
    runs = [run for run in (original.found, *original.again) if name in run.files]
    saved = read_saved(one)
    if saved is not None:
        told = patched.told
        found = [_untold(values, told) for run in runs if (values := read_saved(run.files[name])) is not None]
        after = read_saved(other)
        after = _untold(after, told) if after is not None else None
        differs += _values(name, _untold(saved, told), after, found, original.disturbed)[:2]
        return
    first, second = _text(name, original.run), _text(name, patched)
    base, *others = [_text(name, run) for run in runs] or [first]
    if first is not None and second is not None and base is not None:
        noise = Noise(base, [run for run in others if run is not None], original.disturbed)
        differs += [f"in {name} it {what}" for what in differences(first, second, noise)[:2]]
    elif original.disturbed is not None or len({_digest(run.files[name]) for run in runs}) > 1:
        unknown.append(f"{name} is in a format that cannot be compared")
    else:
        differs.append(f"{name} has other bytes")


_FORM = re.compile(r"\['param_groups'\]\[\d+\]\['(?:fused|foreach)'\]$")
"""The settings in an optimizer's saved state that say which form of its kernels torch is to use: no part of what was
learned. A program reads back a state with another one, and updates by the form that it says."""


def _untold(values: dict[str, Any], told: Told) -> dict[str, Any]:
    """Saved values without those of options that a fix changed."""
    return {path: value for path, value in values.items() if not told.holds(path)}


def _values(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any] | None,
    runs_of_original: Sequence[Mapping[str, Any]],
    disturbed: float | None,
) -> list[str]:
    if after is None:
        return [f"{name} can no longer be read"]
    if before.keys() != after.keys():
        path = min(before.keys() ^ after.keys())
        return [f"{name} {'lacks' if path in before else 'has'} {path.split('<')[0] or 'a value'}"]
    found = []
    for path, one in before.items():
        other = after[path]
        if _FORM.search(path):
            continue
        runs = [run[path] for run in runs_of_original if path in run]
        if _equal(one, other) or (disturbed is None and any(not _equal(runs[0], run) for run in runs[1:])):
            continue
        if disturbed is not None and _number(one) is not None and _number(other) is not None:
            allowed = SPREADS * max((_distance(runs[0], run) for run in runs[1:]), default=0.0)
            if _distance(one, other) <= allowed + least_move(disturbed) * _size(one):
                continue
        found.append(f"{name}: {path or 'the value'} differs")
    return found


def _number(value: Any) -> Any:
    """The value as a float array, where it is one of floating point."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return value
    return np.asarray(value) if isinstance(value, float) else None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
        )
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return type(one) is type(other) and bool(one == other)


def _distance(one: Any, other: Any) -> float:
    """Root mean square of the differences."""
    first, second = _number(one), _number(other)
    if first is None or second is None or first.shape != second.shape:
        return math.inf
    return float(np.sqrt(np.mean(np.abs(first.astype(np.complex128) - second) ** 2))) if first.size else 0.0


def _size(one: Any) -> float:
    value = _number(one)
    return (
        float(np.sqrt(np.mean(np.abs(value.astype(np.complex128)) ** 2))) if value is not None and value.size else 0.0
    )


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unreadable"


def _text(name: str, run: Observation) -> Text | None:
    try:
        data = run.files[name].read_bytes()
        return None if b"\0" in data else run.told.without(read_text(data.decode(), run.names))
    except (OSError, UnicodeDecodeError):
        return None
