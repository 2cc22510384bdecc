"""The events of a Kineto document as typed structs, decoded fast where they are regular and patiently where not.

Arguments stay undecoded until the category of an event says which of them matter: the calls of Python functions, most
of a trace with stacks, have none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

Scalar = int | float | str | None
NO_ARGS = Raw(b"{}")


class X(Struct, tag_field="ph", tag="X", gc=False):
    """A complete event: something with a begin and a duration."""

    name: str = ""
    ts: Scalar = None
    dur: Scalar = None
    cat: str = ""
    pid: Scalar = None
    tid: Scalar = None
    args: Raw = NO_ARGS


class ExactX(X, tag_field="ph", tag="X", gc=False):
    """The same, with the digits of its times kept: for documents whose times a double cannot hold."""

    ts: Raw = Raw(b"null")  # type: ignore[assignment]  # the digits take the number's place
    dur: Raw = Raw(b"null")  # type: ignore[assignment]


class Metadata(Struct, tag_field="ph", tag="M", gc=False):
    """The name of a process or a thread."""

    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    args: Raw = NO_ARGS


_IGNORED_PHASES = ("s", "t", "f", "i", "I", "C", "B", "E", "b", "n", "e", "N", "O", "D", "P", "R", "c", "v", "V")
"""Flows say nothing that correlation ids do not; the others carry no work in a Kineto document."""

Event = X | Metadata | Any


def _decoder(complete: type[X]) -> msgspec.json.Decoder[Any]:
    ignored = [msgspec.defstruct(f"Phase{i}", [], tag_field="ph", tag=ph) for i, ph in enumerate(_IGNORED_PHASES)]
    union: Any = complete | Metadata | None
    for struct in ignored:
        union = union | struct
    return msgspec.json.Decoder(list[union])


@cache
def events_decoder(exact: bool) -> msgspec.json.Decoder[Any]:
    """Decodes `[event, …]`; raises ValidationError on well-formed events of unexpected types."""
    return _decoder(ExactX if exact else X)


class DeviceArgs(Struct, gc=False):
    """What matters of a kernel, a copy or a set."""

    external_id: Scalar = field(default=-1, name="External id")
    old_external_id: Scalar = field(default=-1, name="external id")
    correlation: Scalar = -1
    device: Scalar = -1
    stream: Scalar = -1
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


class CallArgs(Struct, gc=False):
    """What matters of a runtime or driver call."""

    external_id: Scalar = field(default=-1, name="External id")
    old_external_id: Scalar = field(default=-1, name="external id")
    correlation: Scalar = -1


class OpArgs(Struct, gc=False):
    """What matters of an operator."""

    external_id: Scalar = field(default=-1, name="External id")
    old_external_id: Scalar = field(default=-1, name="external id")
    sequence: Scalar = field(default=-1, name="Sequence number")
    forward_thread: Scalar = field(default=-1, name="Fwd thread id")
    shapes: Raw = field(default=Raw(b""), name="Input Dims")
    old_shapes: Raw = field(default=Raw(b""), name="Input dims")
    dtypes: Raw = field(default=Raw(b""), name="Input type")


class RankArgs(Struct, gc=False):
    """What a merged file adds to each event."""

    rank: Scalar = None
    pid_raw: Scalar = None


class NameArgs(Struct, gc=False):
    """The argument of a `thread_name` or `process_name`."""

    name: Scalar = None


_Args = TypeVar("_Args", DeviceArgs, CallArgs, OpArgs, RankArgs, NameArgs)


def decode_args(raws: Sequence[Raw], kind: type[_Args]) -> list[_Args]:
    """The arguments of many events at once; what cannot be used in one of them is left at its default."""
    many, _ = _args_decoders(kind)
    try:
        return many.decode(b"[" + b",".join(raws) + b"]")  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [_decode_one(raw, kind) for raw in raws]


@cache
def _args_decoders(kind: type[Any]) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    return msgspec.json.Decoder(list[kind]), msgspec.json.Decoder(kind)  # type: ignore[valid-type]


def _decode_one(raw: Raw, kind: type[_Args]) -> _Args:
    _, one = _args_decoders(kind)
    try:
        return one.decode(raw)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError):
        plain = plain_json(bytes(raw))
    if not isinstance(plain, dict):
        return kind()
    lists = {spec.encode_name for spec in msgspec.structs.fields(kind) if spec.type is Raw}
    usable = {key: value for key, value in plain.items() if key in lists or isinstance(value, int | str | None)}
    try:
        return one.decode(_as_json(usable))  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return kind()


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
    if phase not in ("X", "M"):
        return None
    name, pid, tid = _text(value.get("name")), _scalar(value.get("pid")), _scalar(value.get("tid"))
    args = Raw(_as_json(value["args"])) if isinstance(value.get("args"), dict) else NO_ARGS
    if phase == "M":
        return Metadata(name, pid, tid, args)
    return X(name, _scalar(value.get("ts")), _scalar(value.get("dur")), _text(value.get("cat")), pid, tid, args)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode() if value is not None else ""


def _scalar(value: object) -> Scalar:
    if isinstance(value, str):
        return _text(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def _int_or_text(digits: str) -> int | str:
    # int() refuses thousands of digits, and what has more than 20 is no id anyway.
    return int(digits) if len(digits) <= 20 else digits
