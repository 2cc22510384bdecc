"""The events of a Kineto document as typed structs, decoded fast where they are regular and patiently where not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

Scalar = int | float | str | None
ABSENT = Raw(b"")
"""Stands, by identity, for a text that is not there."""


class Args(Struct, gc=False, frozen=True):
    """The arguments of any event that matter. One struct for all kinds is decoded faster than one for each."""

    external_id: Scalar = field(default=-1, name="External id")
    correlation: Scalar = -1
    device: Scalar = -1
    stream: Scalar = -1
    sequence: Scalar = field(default=-1, name="Sequence number")
    forward_thread: Scalar = field(default=-1, name="Fwd thread id")
    shapes: Raw = field(default=ABSENT, name="Input Dims")
    dtypes: Raw = field(default=ABSENT, name="Input type")
    bytes: Scalar = -1
    kind: Scalar = None
    graph: Scalar = field(default=-1, name="graph id")
    collective: Scalar = field(default=None, name="Collective name")
    elements_in: Scalar = field(default=-1, name="In msg nelems")
    elements_out: Scalar = field(default=-1, name="Out msg nelems")
    group_size: Scalar = field(default=-1, name="Group size")
    dtype: Scalar = None
    group: Scalar = field(default=None, name="Process Group Name")
    group_description: Scalar = field(default=None, name="Process Group Description")
    group_ranks: Scalar = field(default=None, name="Process Group Ranks")
    old_external_id: Scalar = field(default=-1, name="external id")
    old_shapes: Raw = field(default=ABSENT, name="Input dims")
    values: Raw = field(default=ABSENT, name="Concrete Inputs")
    blocks_per_sm: Scalar = field(default=-1, name="blocks per SM")
    warps_per_sm: Scalar = field(default=-1, name="warps per SM")
    wait_on_stream: Scalar = -1
    wait_on_correlation: Scalar = field(default=-1, name="wait_on_cuda_event_record_corr_id")
    rank: Scalar = None
    """The rank, in a merged file."""
    pid_raw: Scalar = None
    """The process id before merging, in a merged file."""


class MetadataArgs(Struct, gc=False, frozen=True):
    """The arguments of a `thread_name` or `process_name`."""

    name: Scalar = None
    rank: Scalar = None
    pid_raw: Scalar = None


class MemoryArgs(Struct, gc=False, frozen=True):
    """The arguments of the allocator's events (`memory_events`)."""

    address: Scalar = field(default=-1, name="Addr")
    bytes: Scalar = field(default=0, name="Bytes")
    allocated: Scalar = field(default=-1, name="Total Allocated")
    reserved: Scalar = field(default=-1, name="Total Reserved")
    device: Scalar = field(default=-1, name="Device Id")
    device_type: Scalar = field(default=-1, name="Device Type")
    rank: Scalar = None
    pid_raw: Scalar = None


class X(Struct, tag_field="ph", tag="X", gc=False):
    """A complete event: something with a begin and a duration."""

    name: str = ""
    ts: Scalar = None
    dur: Scalar = None
    cat: str = ""
    pid: Scalar = None
    tid: Scalar = None
    args: Args = Args()


class ExactX(X, tag_field="ph", tag="X", gc=False):
    """A complete event with the digits of its times kept: for documents whose times a double cannot hold."""

    ts: Raw = Raw(b"null")  # type: ignore[assignment]  # the digits take the number's place
    dur: Raw = Raw(b"null")  # type: ignore[assignment]


class Metadata(Struct, tag_field="ph", tag="M", gc=False):
    """The name of a process or a thread."""

    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    args: MetadataArgs = MetadataArgs()


class Instant(Struct, tag_field="ph", tag="i", gc=False):
    """An event without a duration, of which only the allocator's are of use."""

    name: str = ""
    ts: Scalar = None
    cat: str = ""
    pid: Scalar = None
    args: MemoryArgs | None = None


class ExactInstant(Instant, tag_field="ph", tag="i", gc=False):
    """An instant event with the digits of its time kept."""

    ts: Raw = Raw(b"null")  # type: ignore[assignment]  # the digits take the number's place


_IGNORED_PHASES = ("s", "t", "f", "I", "C", "B", "E", "b", "n", "e", "N", "O", "D", "P", "R", "c", "v", "V")
"""Flows say nothing that correlation ids do not; the others carry no work in a Kineto document."""

Event = X | Metadata | Instant | Any


def _decoder(complete: type[X], instant: type[Instant]) -> msgspec.json.Decoder[Any]:
    ignored = [msgspec.defstruct(f"Phase{i}", [], tag_field="ph", tag=ph) for i, ph in enumerate(_IGNORED_PHASES)]
    union: Any = complete | instant | Metadata | None
    for struct in ignored:
        union = union | struct
    return msgspec.json.Decoder(list[union])


@cache
def events_decoder(exact: bool) -> msgspec.json.Decoder[Any]:
    """Decodes `[event, …]`; raises ValidationError on well-formed events of unexpected types."""
    return _decoder(ExactX, ExactInstant) if exact else _decoder(X, Instant)


def plain_json(data: bytes) -> Any:
    """JSON that a strict decoder refuses: raw control characters, invalid UTF-8, NaN. Floats stay text, to keep their
    digits. Raises ValueError or RecursionError when there is no sense in it."""
    return json.loads(
        data.decode("utf-8", "replace"),
        strict=False,
        parse_float=str,
        parse_int=_int_or_text,
        parse_constant=lambda _: None,
    )


def events_of_plain(values: Sequence[object]) -> tuple[list[Event], int]:
    """The events among decoded JSON values of any shape, and how many values were none."""
    events: list[Event] = []
    strange = 0
    for value in values:
        if isinstance(value, dict):
            events.append(_event_of(value))
        elif value is not None:
            strange += 1
    return events, strange


def _event_of(value: dict[str, Any]) -> Event:
    phase = value.get("ph")
    if phase not in ("X", "M", "i"):
        return None
    name, pid, tid = _text(value.get("name")), _scalar(value.get("pid")), _scalar(value.get("tid"))
    if phase == "M":
        return Metadata(name, pid, tid, _args_of(value.get("args"), MetadataArgs))
    if phase == "i":
        args = _args_of(value.get("args"), MemoryArgs)
        return Instant(name, _scalar(value.get("ts")), _text(value.get("cat")), pid, args)
    times = _scalar(value.get("ts")), _scalar(value.get("dur"))
    return X(name, *times, _text(value.get("cat")), pid, tid, _args_of(value.get("args"), Args))


_AnyArgs = TypeVar("_AnyArgs", Args, MetadataArgs, MemoryArgs)


def _args_of(value: object, kind: type[_AnyArgs]) -> _AnyArgs:
    """The arguments that are of use; those of an unexpected type are left at their defaults."""
    found: dict[str, Any] = {}
    for spec in msgspec.structs.fields(kind):
        if not isinstance(value, dict) or spec.encode_name not in value:
            continue
        one = value[spec.encode_name]
        if spec.type is Raw:
            found[spec.name] = Raw(json.dumps(one).encode())
        elif (scalar := _scalar(one)) is not None:
            found[spec.name] = scalar
    return kind(**found)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode() if value is not None else ""


def _scalar(value: object) -> Scalar:
    if isinstance(value, str):
        return _text(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _int_or_text(digits: str) -> int | str:
    # int() refuses thousands of digits, and what has more than 20 is no id anyway.
    return int(digits) if len(digits) <= 20 else digits
