"""Regular events, told apart by their category while they are decoded: only what their table needs becomes an object.

Nearly every chunk of a trace is regular: each event in it has a category that is known, and values of the usual types.
What is not is decoded by `events`, which takes a third longer and anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field

from diagnose.trace.readers.kineto.events import ABSENT, Args, MemoryArgs, Scalar
from diagnose.trace.readers.kineto.meaning import Lane, lane_of

_CATEGORIES = (
    *("kernel", "Kernel", "mtia_ccp_events", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"),
    *("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime", "privateuse1_runtime"),
    *("cpu_op", "Operator", "python_function", "user_annotation", "gpu_user_annotation"),
    *("Trace", "overhead", "cuda_sync", "cuda_profiler_range", "cpu_instant_event"),
)
"""Spellings of `meaning`'s categories, as profilers write them."""
_FLOWS = ("ac2g", "fwdbwd", "async", "async_cpu_to_gpu")


class _Complete(Struct, gc=False):
    ph: Literal["X"]
    name: str = ""
    ts: Scalar = None
    dur: Scalar = None
    pid: Scalar = None
    tid: Scalar = None


class _OpArgs(Struct, gc=False, frozen=True):
    external_id: Scalar = field(default=-1, name="External id")
    sequence: Scalar = field(default=-1, name="Sequence number")
    forward_thread: Scalar = field(default=-1, name="Fwd thread id")
    shapes: Raw = field(default=ABSENT, name="Input Dims")
    dtypes: Raw = field(default=ABSENT, name="Input type")
    values: Raw = field(default=ABSENT, name="Concrete Inputs")
    old_external_id: Scalar = field(default=-1, name="external id")
    old_shapes: Raw = field(default=ABSENT, name="Input dims")


class _CallArgs(Struct, gc=False, frozen=True):
    external_id: Scalar = field(default=-1, name="External id")
    correlation: Scalar = -1
    old_external_id: Scalar = field(default=-1, name="external id")


class _Op(_Complete, gc=False):
    args: _OpArgs = _OpArgs()


class _Call(_Complete, gc=False):
    args: _CallArgs = _CallArgs()


class _Work(_Complete, gc=False):
    args: Args = Args()


class _Unused(Struct, gc=False):
    ph: Literal["X", "i"]


class _Instant(Struct, gc=False):
    ph: Literal["i"]
    name: str = ""
    ts: Scalar = None
    args: MemoryArgs | None = None


class _Flow(Struct, gc=False):
    ph: Literal["s", "t", "f"]


_SHAPES: Mapping[Lane, type[Struct]] = {
    Lane.UNUSED: _Unused,
    Lane.OP: _Op,
    Lane.CALL: _Call,
    Lane.KERNEL: _Work,
    Lane.COPY: _Work,
    Lane.SET: _Work,
    Lane.FRAME: _Complete,
    Lane.RANGE: _Complete,
    Lane.DEVICE_RANGE: _Complete,
    Lane.MEMORY: _Instant,
    Lane.WAIT: _Work,
}


@cache
def lane_by_type() -> Mapping[type, Lane]:
    """The table of each type of event that `regular_decoder` gives."""
    shapes = [(category, lane_of(category), _SHAPES[lane_of(category)]) for category in _CATEGORIES]
    shapes += [(category, Lane.UNUSED, _Flow) for category in _FLOWS]
    return {
        msgspec.defstruct(category, [], bases=(shape,), tag_field="cat", tag=category, gc=False): lane
        for category, lane, shape in shapes
    }


@cache
def regular_decoder() -> msgspec.json.Decoder[Any]:
    """Decodes `[event, …]` into events of the types in `lane_by_type`; raises ValidationError on any other."""
    union: Any = None
    for kind in lane_by_type():
        union = union | kind
    return msgspec.json.Decoder(list[union])
