"""Lets a program that trains on CUDA run on the CPU, and remembers which tensors it believes on the device.

Tensors stay on the CPU. Those that the program creates on a CUDA device, copies to one, or computes from such tensors
are marked, by their storage; `Tensor.device` answers `cuda` for them, so that torch's optimizers choose what they would
choose there. `torch.compile` keeps its graphs and their breaks, and runs the graphs without generating code. Nothing is
said of time: a program run so is counted, never timed.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any, Protocol

from ..imports import after_import
from ..transparency import unseen

NO_PRETENCE = (
    *("torch._", "torch.fx", "torch.serialization", "torch.storage", "torch.multiprocessing"),
    *("torch.distributed.tensor", "torch.distributed.fsdp"),
)
"""Modules of torch that use a device instead of choosing by it: they are told the true one."""
_CAPABILITY = (9, 0)
_MEMORY_BYTES = 80 << 30
"""The properties of the pretended device: compute capability 9.0, with 80 GiB."""


class Counting(Protocol):
    """Told of what no operator shows."""

    def note(self, kind: str, count: int = 1, size: int = 0) -> None:
        """Count an event at the program's line that led here."""


class Residence:
    """The storages that the program believes on the device, and their bytes."""

    def __init__(self) -> None:
        self.everything = False
        """Every tensor counts as on the device: the program trains on the CPU and says so."""
        self.live = 0
        self.peak = 0
        self._bytes: dict[int, int] = {}
        self._alive: dict[int, Any] = {}

    def holds(self, tensor: Any) -> bool:
        """Whether the program believes this tensor on the device."""
        if self.everything:
            return True
        key = _key(tensor)
        return key is not None and key in self._bytes

    def put(self, tensor: Any) -> None:
        """Mark a tensor as on the device."""
        key = _key(tensor)
        if key is None or key in self._bytes:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        self._bytes[key] = size
        self._alive[key] = weakref.ref(storage, lambda _: self._gone(key))
        self.live += size
        self.peak = max(self.peak, self.live)

    def take(self, tensor: Any) -> None:
        """Unmark a tensor that was copied to the host."""
        key = _key(tensor)
        if key is not None:
            self._gone(key)

    def _gone(self, key: int) -> None:
        self._alive.pop(key, None)
        self.live -= self._bytes.pop(key, 0)


def _key(tensor: Any) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor, or one without storage
        return None


def is_device(where: Any) -> bool:
    """Whether a device, in any of the forms that torch takes, is a CUDA device."""
    if isinstance(where, bool):
        return False
    return isinstance(where, int) or getattr(where, "type", None) == "cuda" or str(where).split(":")[0] == "cuda"


def pretend(torch: Any, residence: Residence, counting: Counting) -> None:
    """Replace what would need a device. Called once torch is imported, before the program's own code goes on."""
    _replace_cuda(torch, counting)
    _replace_copies(torch, residence, counting)
    _replace_copy_in(torch, residence, counting)
    _replace_factories(torch, residence, counting)
    _replace_device(torch, residence)
    _replace_contexts(torch)
    after_import("torch.distributed.distributed_c10d", _use_gloo)
    _replace_compile(torch, counting)


def _replace_cuda(torch: Any, counting: Counting) -> None:
    cuda, rank = torch.cuda, int(os.environ.get("LOCAL_RANK", "0"))
    count = max(rank + 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    current = [rank]

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        current[0] = index or 0

    def properties(*_: Any, **__: Any) -> Any:
        made = {"name": "pretended device", "major": _CAPABILITY[0], "minor": _CAPABILITY[1]}
        return type("Properties", (), {**made, "total_memory": _MEMORY_BYTES, "multi_processor_count": 132})()

    def constant(value: Any) -> Callable[..., Any]:  # one function each: torch.compile knows them apart by identity
        return lambda *_, **__: value

    def synchronize(*_: Any, **__: Any) -> None:
        counting.note("sync")

    cuda._lazy_init = constant(None)
    cuda.is_available, cuda.device_count = constant(True), constant(count)
    cuda.current_device, cuda.set_device = (lambda: current[0]), set_device
    cuda.get_device_properties = properties
    cuda.get_device_name, cuda.get_device_capability = constant("pretended device"), constant(_CAPABILITY)
    cuda.is_bf16_supported, cuda.get_arch_list = constant(True), constant(["sm_90"])
    cuda.mem_get_info = constant((_MEMORY_BYTES, _MEMORY_BYTES))
    cuda.memory_stats = constant({})
    cuda.synchronize, cuda.device = synchronize, constant(nullcontext())
    cuda.stream = constant(nullcontext())
    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.current_stream, cuda.default_stream = constant(_Stream()), constant(_Stream())
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "utilization"):
        setattr(cuda, name, constant(0))
    for name in ("reset_peak_memory_stats", "manual_seed", "manual_seed_all", "ipc_collect"):
        setattr(cuda, name, constant(None))
    cuda.empty_cache = lambda: counting.note("sync")
    cuda.get_rng_state, cuda.set_rng_state = lambda *_: torch.get_rng_state(), constant(None)
    cuda.get_rng_state_all, cuda.set_rng_state_all = constant([]), constant(None)
    cuda.make_graphed_callables = lambda callables, *_, **__: callables
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, constant(None))


class _Stream:
    """A stream, or an event of one, that has nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self if name == "record_event" else True

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Event(_Stream):
    """An event; the time between two is nothing."""

    def elapsed_time(self, _other: object) -> float:
        """Return milliseconds, more than none: programs divide by it."""
        return 1.0


def _replace_copies(torch: Any, residence: Residence, counting: Counting) -> None:
    tensor = torch.Tensor
    to, tolist = tensor.to, tensor.tolist

    def to_device(self: Any, kwargs: dict[str, Any], args: tuple[Any, ...] = ()) -> Any:
        there = residence.holds(self)
        result = to(self, "cpu", *args, **(kwargs if there else {**kwargs, "copy": True}))
        if not there:
            _note_copy(counting, self, waits=not kwargs.get("non_blocking"))
        residence.put(result)
        return result

    def to_host(self: Any, kwargs: dict[str, Any], args: tuple[Any, ...] = ()) -> Any:
        if not residence.holds(self) or residence.everything:
            return to(self, "cpu", *args, **kwargs)
        result = to(self, "cpu", *args, **{**kwargs, "copy": True})
        residence.take(result)
        counting.note("copy to host", 1, _size(self))
        if not kwargs.get("non_blocking"):
            counting.note("sync")
        return result

    @unseen
    @functools.wraps(to)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _wants_truth(sys._getframe(1)):
            return to(self, *args, **kwargs)
        where, given, rest = _destination(torch, residence, args, kwargs)
        if is_device(where):
            return to_device(self, rest, given)
        return to_host(self, rest, given) if str(where) == "cpu" else to(self, *args, **kwargs)

    @unseen
    @functools.wraps(tensor.cuda)
    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:  # noqa: ARG001 - as it is
        return to_device(self, {"non_blocking": non_blocking})

    @unseen
    @functools.wraps(tensor.cpu)
    def cpu(self: Any, **_: Any) -> Any:
        return to_host(self, {})

    @unseen
    @functools.wraps(tolist)
    def listed(self: Any) -> Any:
        if residence.holds(self):
            counting.note("sync")
        return tolist(self)

    tensor.to, tensor.cuda, tensor.cpu, tensor.tolist = moved, cuda, cpu, listed
    tensor.pin_memory = unseen(lambda self, *_, **__: self)
    tensor.is_pinned = unseen(lambda _self, *_, **__: False)


def _replace_copy_in(torch: Any, residence: Residence, counting: Counting) -> None:
    copy_in = torch.Tensor.copy_

    @unseen
    @functools.wraps(copy_in)
    def copied(self: Any, source: Any, non_blocking: bool = False) -> Any:
        # A scalar of the host is an argument of the kernel.
        if isinstance(source, torch.Tensor) and source.dim() and residence.holds(self) != residence.holds(source):
            if residence.holds(self):
                _note_copy(counting, source, waits=not non_blocking)
            else:
                counting.note("copy to host", 1, _size(source))
                counting.note("sync")
        return copy_in(self, source, non_blocking)

    torch.Tensor.copy_ = copied


def _wants_truth(caller: FrameType) -> bool:
    return str(caller.f_globals.get("__name__", "")).startswith(NO_PRETENCE)


def _destination(
    torch: Any, residence: Residence, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return where `Tensor.to` was asked to copy to, None for nowhere else, and its other arguments."""
    rest = {name: value for name, value in kwargs.items() if name not in ("device", "other")}
    where, given = (args[0], args[1:]) if args else (kwargs.get("device", kwargs.get("other")), ())
    if isinstance(where, torch.Tensor):
        given, where = (where.dtype, *given), torch.device("cuda") if residence.holds(where) else "cpu"
    elif isinstance(where, torch.dtype):
        where, given = kwargs.get("device"), args
    flags = [value for value in given if isinstance(value, bool)]
    rest.update(zip(("non_blocking", "copy"), flags, strict=False))
    return where, tuple(value for value in given if not isinstance(value, bool)), rest


def _note_copy(counting: Counting, source: Any, *, waits: bool) -> None:
    counting.note("copy to device", 1, _size(source))
    if waits:
        counting.note("blocking copy")


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _replace_factories(torch: Any, residence: Residence, counting: Counting) -> None:
    """Replace the functions that make a tensor of values of the host: their work is no single operator."""

    def on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            where = kwargs.get("device")
            kwargs.pop("pin_memory", None)
            if where is None or not is_device(where):
                return make(*args, **kwargs)
            result = make(*args, **{**kwargs, "device": "cpu"})
            source = args[0] if args else kwargs.get("data")
            if not (isinstance(source, torch.Tensor) and residence.holds(source)):
                _note_copy(counting, result, waits=True)
            residence.put(result)
            return result

        return made

    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    generator = torch.Generator

    class Generator(generator):  # type: ignore[misc, valid-type]  # torch is not imported before the program
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator.__new__(cls, "cpu" if is_device(device) else device)

    torch.Generator = Generator
    load = torch.load

    @unseen
    @functools.wraps(load)
    def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(file, "cpu" if map_location is None or is_device(map_location) else map_location, *args, **kwargs)

    torch.load = loaded


def _replace_device(torch: Any, residence: Residence) -> None:
    true, pretended = torch.Tensor.device, torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def device(self: Any) -> Any:
        if residence.everything or _wants_truth(sys._getframe(1)):
            return true.__get__(self)
        return pretended if residence.holds(self) else true.__get__(self)

    group = torch._C._group_tensors_by_device_and_dtype

    @unseen
    @functools.wraps(group)
    def grouped(lists: Any, *args: Any, **kwargs: Any) -> Any:
        """Group under the pretended device: torch chooses by the keys whether operators take many tensors at once."""
        found = group(lists, *args, **kwargs)
        return {
            (pretended if where is not None and residence.holds(made[0][0][0]) else where, kind): made
            for (where, kind), made in found.items()
        }

    torch._C._group_tensors_by_device_and_dtype = grouped
    torch.Tensor.device = property(device)
    torch.Tensor.is_cuda = property(lambda self: not residence.everything and residence.holds(self))
    torch.Tensor.get_device = lambda self: pretended.index if residence.holds(self) else -1


def _replace_contexts(torch: Any) -> None:
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    @unseen
    @functools.wraps(begin)
    def begun(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":  # half precision of the CPU lacks kernels: the other type of as many bytes stands in
            device_type, dtype = "cpu", torch.bfloat16 if dtype in (None, torch.float16) else dtype
        begin(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = begun


def _use_gloo(distributed: Any) -> None:
    connect = distributed.init_process_group

    @unseen
    @functools.wraps(connect)
    def connected(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        chosen = "gloo" if backend is None or "nccl" in str(backend) else backend
        return connect(chosen, *args, **kwargs)

    distributed.init_process_group = connected
    package = sys.modules.get("torch.distributed")
    if package is not None:
        package.init_process_group = connected  # type: ignore[attr-defined]


def _replace_compile(torch: Any, counting: Counting) -> None:
    compile_ = torch.compile

    def backend(graph: Any, _inputs: Any) -> Callable[..., Any]:
        counting.note("compilation")
        forward = graph.forward

        def run(*args: Any) -> Any:
            counting.note("graph")
            return forward(*args)

        disabled: Callable[..., Any] = torch.compiler.disable(run)
        return disabled

    @unseen
    @functools.wraps(compile_)
    def compiled(model: Any = None, **kwargs: Any) -> Any:
        kept = {name: kwargs[name] for name in ("fullgraph", "dynamic", "disable") if name in kwargs}
        return compile_(model, backend=backend, **kept)

    torch.compile = compiled
