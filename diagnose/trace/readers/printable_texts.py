"""Makes the texts of a trace fit to be printed: a kernel's name may hold whatever its author liked."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from diagnose.model import Facts, Site, SyncSite
from diagnose.trace import Collective, StackFrame, Thread, Trace
from diagnose.units import printable

_Record = TypeVar("_Record", Thread, Collective, StackFrame, Site, SyncSite, Facts)


def with_printable_texts(trace: Trace) -> Trace:
    """Make a trace's texts printable; it is copied only where a text has to change."""
    changed: dict[str, Any] = {
        "names": _texts(trace.names),
        "texts": _texts(trace.texts),
        "device_names": _texts(trace.device_names),
        "warnings": _texts(trace.warnings),
        "threads": _records(trace.threads),
        "collectives": _records(trace.collectives),
        "stacks": _stacks(trace.stacks),
        "sites": _records(trace.sites),
        "sync_sites": None if trace.sync_sites is None else _records(trace.sync_sites),
        "facts": _record(trace.facts),
    }
    changed = {name: value for name, value in changed.items() if value is not getattr(trace, name)}
    return replace(trace, **changed) if changed else trace


def _texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    # One test of all of them together takes a tenth of the time of one for each.
    return texts if "".join(texts).isprintable() else tuple(map(printable, texts))


def _records(records: tuple[_Record, ...]) -> tuple[_Record, ...]:
    clean = tuple(map(_record, records))
    return records if all(new is old for new, old in zip(clean, records, strict=True)) else clean


def _record(record: _Record) -> _Record:
    """A frozen record with printable texts in its fields, tuples and mappings."""
    values = {spec.name: getattr(record, spec.name) for spec in fields(record)}
    changed = {name: new for name, old in values.items() if (new := _value(old)) is not old}
    return replace(record, **changed) if changed else record


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        clean: Any = tuple(map(_value, value))
        return value if all(new is old for new, old in zip(clean, value, strict=True)) else clean
    if isinstance(value, dict):
        clean = {_value(key): _value(entry) for key, entry in value.items()}
        return value if clean == value else clean
    return value


def _stacks(stacks: tuple[tuple[StackFrame, ...], ...]) -> tuple[tuple[StackFrame, ...], ...]:
    """Stacks share their frames, so each frame is looked at once."""
    frames: dict[int, StackFrame] = {id(frame): frame for stack in stacks for frame in stack}
    changed = {number: new for number, old in frames.items() if (new := _record(old)) is not old}
    return tuple(tuple(changed.get(id(frame), frame) for frame in stack) for stack in stacks) if changed else stacks
