"""Records where the program builds what rules and fixers care about: line and arguments as they took effect.

Constructors are wrapped so that their signatures stay as they are; a line is recorded once. Where a library builds the
thing, its line is recorded as not owned, and the user's line that led there stands in `called_from`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ...records import SITES
from ..guard import contained, guarded
from ..imports import after_import
from ..resident_memory import resident_bytes
from ..source_ownership import Ownership
from ..transparency import unseen
from ..writer import encode

_SITES_KEPT = 500
TRAINED_FROM = "trained from"
"""The kind of site that names where a loader was built that traced steps took their batches from."""
STEPPED, IDLE, FROZEN = "stepped", "idle parameters", "frozen parameters"
"""The kinds of sites that name where optimizers were built which have all stepped, of which one had a parameter without
a gradient in one of its first steps, and of which one then had a parameter that requires none."""
_LOOKED_AT = 10
"""The first steps of an optimizer whose gradients are looked at: more than one, for layers that are left out at
random."""
Scalar = int | float | str | bool | None
Describe = Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any]]


class Sites:
    """The construct sites seen so far; `drain` gives new ones."""

    def __init__(self) -> None:
        self.ownership = Ownership()
        self.autocast_dtype: str | None = None
        self.compiling: Callable[[], None] = lambda: None
        """Called before each use of torch.compile."""
        self.compiled: Callable[[], None] = lambda: None
        """Called after each use of torch.compile."""
        self._seen: set[tuple[str, str, int]] = set()
        self._new: list[str] = []
        self._built: dict[int, tuple[weakref.ref[Any], tuple[str, int, str]]] = {}
        """Each loader and optimizer that lives, by its id, with where it was built: file, line, function. Its own hash
        is not asked for: that may be code of the program's."""
        self._to_look_at: dict[int, int] = {}
        """The steps of optimizers that are still to be looked at, by their ids."""

    def install(self, torch: Any) -> None:
        """Wrap the constructors of this torch."""
        self._after_init(torch.utils.data.DataLoader, "DataLoader", _loader)
        self._after_init(torch.optim.Optimizer, "optimizer", _optimizer)
        self._after_init(torch.nn.parallel.DistributedDataParallel, "DistributedDataParallel", _ddp)
        self._after_init(torch.nn.DataParallel, "DataParallel", _data_parallel)
        self._after_init(torch.amp.GradScaler, "GradScaler", _scaler)
        self._after_init(torch.autograd.set_detect_anomaly, "anomaly", _anomaly)
        # Not its constructor: that warns at the line that called it.
        self._after(torch.autograd.detect_anomaly, "__enter__", "anomaly", _anomaly)
        self._compile(torch)
        self._autocast(torch)
        after_import("torch.distributed.fsdp", self._fsdp)

    def record(self, kind: str, arguments: dict[str, Any], made: object = None) -> None:
        """Note the innermost line outside torch that led here, and for an object that was `made`, outside of that."""
        caller, user = self.ownership.caller(sys._getframe(1), made)
        if caller is None or len(self._seen) >= _SITES_KEPT:
            return
        file, line = caller.f_code.co_filename, caller.f_lineno
        if kind in {"DataLoader", "optimizer"} and made is not None:
            number, forget = id(made), contained(self._forget)
            gone = weakref.ref(made, lambda _: forget(number))
            self._built[number] = gone, (file, line, caller.f_code.co_qualname)
            if kind == "optimizer":
                self._to_look_at[number] = _LOOKED_AT
        if (kind, file, line) in self._seen:
            return
        self._seen.add((kind, file, line))
        if user is not None and user is not caller:
            arguments["called_from"] = f"{user.f_code.co_filename}:{user.f_lineno}"
        site = {"kind": kind, "file": file, "line": line, "function": caller.f_code.co_qualname}
        scalars = {name: _scalar(value) for name, value in arguments.items()}
        self._new.append(encode({**site, "arguments": scalars, "owned": user is caller}) + "\n")

    def _forget(self, number: int) -> None:
        self._built.pop(number, None)
        self._to_look_at.pop(number, None)

    def add(self, kind: str, file: str, line: int, function: str | None, arguments: dict[str, Any]) -> None:
        """Note a line that is known otherwise, once."""
        if (kind, file, line) in self._seen:
            return
        self._seen.add((kind, file, line))
        site = {"kind": kind, "file": file, "line": line, "function": function, "arguments": arguments}
        self._new.append(encode({**site, "owned": self.ownership.owns(file)}) + "\n")

    def trained_from(self, loader: object) -> None:
        """Note that a step of training took its batch from this loader."""
        built = self._where_built(loader)
        if built is not None:
            self.add(TRAINED_FROM, *built, {})

    def stepped(self, optimizer: Any) -> None:
        """Note in the first steps of an optimizer whether all of its parameters have a gradient."""
        left = self._to_look_at.get(id(optimizer), 0)
        if left:
            self._to_look_at[id(optimizer)] = left - 1
            guarded(self._note_gradients)(optimizer)

    def _note_gradients(self, optimizer: Any) -> None:
        built = self._where_built(optimizer)
        if built is None:
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        beside = [number for number, (_, where) in tuple(self._built.items()) if where == built]
        noted = {
            STEPPED: all(self._to_look_at.get(number, 0) < _LOOKED_AT for number in beside),
            IDLE: any(parameter.requires_grad and parameter.grad is None for parameter in parameters),
            FROZEN: not all(parameter.requires_grad for parameter in parameters),
        }
        for kind in (kind for kind, is_so in noted.items() if is_so):
            self.add(kind, *built, {})

    def _where_built(self, made: object) -> tuple[str, int, str] | None:
        alive, built = self._built.get(id(made), (None, None))
        return built if alive is not None and alive() is made else None

    def drain(self) -> Iterator[tuple[str, str]]:
        """Lines for the file of sites."""
        new, self._new = self._new, []
        yield SITES, "".join(new)

    def _after_init(self, owner: Any, kind: str, describe: Describe) -> None:
        self._after(owner, "__init__", kind, describe)

    def _after(self, owner: Any, method: str, kind: str, describe: Describe) -> None:
        original = getattr(owner, method)
        record = guarded(lambda self_, args, kwargs: self.record(kind, describe(self_, args, kwargs), self_))

        @unseen
        @functools.wraps(original)
        def watched(self_: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self_, *args, **kwargs)
            record(self_, args, kwargs)
            return result

        setattr(owner, method, watched)

    def _compile(self, torch: Any) -> None:
        compile_ = torch.compile
        record = guarded(lambda arguments: self.record("compile", arguments))

        @unseen
        @functools.wraps(compile_)
        def watched_compile(*args: Any, **kwargs: Any) -> Any:
            self.compiling()
            result = compile_(*args, **kwargs)
            # As a decorator with arguments, torch.compile calls itself again with the function.
            model = args[0] if args else kwargs.get("model")
            named = {name: kwargs.get(name) for name in ("mode", "fullgraph", "dynamic", "backend") if name in kwargs}
            if model is not None:
                record({"name": getattr(model, "__qualname__", type(model).__name__), **named})
                self.compiled()
            return result

        torch.compile = watched_compile

    def _autocast(self, torch: Any) -> None:
        autocast = torch.amp.autocast_mode.autocast
        enter = autocast.__enter__
        seen = guarded(self._autocast_entered)

        @unseen
        @functools.wraps(enter)
        def watched_enter(self_: Any) -> Any:
            result = enter(self_)
            seen(self_, sys._getframe(1))
            return result

        autocast.__enter__ = watched_enter

    def _autocast_entered(self, context: Any, frame: Any) -> None:
        enabled = bool(context._enabled)
        dtype = str(context.fast_dtype).removeprefix("torch.")
        if enabled:
            self.autocast_dtype = dtype
        if ("autocast", frame.f_code.co_filename, frame.f_lineno) not in self._seen:
            arguments = {"device": context.device, "dtype": dtype, "enabled": enabled}
            self.record("autocast", arguments)

    def _fsdp(self, module: Any) -> None:
        if hasattr(module, "FullyShardedDataParallel"):
            self._after_init(module.FullyShardedDataParallel, "FSDP", _fsdp)
        shard = getattr(module, "fully_shard", None)
        if shard is None:
            return
        record = guarded(lambda arguments: self.record("fully_shard", arguments))

        @unseen
        @functools.wraps(shard)
        def watched_shard(*args: Any, **kwargs: Any) -> Any:
            result = shard(*args, **kwargs)
            record({name: value for name, value in kwargs.items() if isinstance(value, int | float | str | bool)})
            return result

        # What else the function carries (`fully_shard.state`) goes along; `wraps` copies its dictionary.
        module.fully_shard = watched_shard


def _loader(loader: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> dict[str, Any]:
    from torch.utils.data import IterableDataset, RandomSampler

    names = ("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last", "timeout")
    dataset = loader.dataset
    return {
        "name": type(loader).__name__,
        **{name: getattr(loader, name, None) for name in names},
        "dataset": type(dataset).__name__,
        "iterable": isinstance(dataset, IterableDataset),
        "shuffle": isinstance(loader.sampler, RandomSampler),
        "collate_fn": getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__name__),
        "multiprocessing_context": _start_method(loader),
    }


def _start_method(loader: Any) -> str | None:
    context = loader.multiprocessing_context
    return None if context is None else str(context.get_start_method())


def _optimizer(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> dict[str, Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        "name": type(optimizer).__name__,
        **{name: value for name, value in optimizer.defaults.items() if isinstance(value, int | float | str | None)},
        "tensors": len(parameters),
        "elements": sum(parameter.numel() for parameter in parameters),
        "devices": ",".join(sorted({parameter.device.type for parameter in parameters})),
        "groups": len(optimizer.param_groups),
        "reserved_bytes": _reserved_bytes(parameters),
        "resident_bytes": resident_bytes(),
    }


def _reserved_bytes(parameters: list[Any]) -> int | None:
    """Return the device memory that this process has reserved; None where the parameters are on the host."""
    if not any(parameter.device.type == "cuda" for parameter in parameters):
        return None
    import torch

    return int(torch.cuda.memory_reserved())


def _ddp(wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    given = inspect.signature(type(wrapper).__init__).bind_partial(wrapper, *args, **kwargs)
    given.apply_defaults()
    names = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers", "bucket_cap_mb")
    found = {name: given.arguments.get(name) for name in names}
    return {**found, "bucket_bytes": getattr(wrapper, "bucket_bytes_cap", None), "backend": _backend(wrapper)}


def _backend(wrapper: Any) -> str | None:
    """Return what carries the gradients of a wrapper: nccl, gloo; None where this torch does not say."""
    try:
        return str(wrapper.process_group._get_backend(wrapper.device).name())
    except (AttributeError, RuntimeError):
        return None


def _data_parallel(wrapper: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"devices": len(getattr(wrapper, "device_ids", ()))}


def _fsdp(wrapper: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    named = {name: str(value) for name, value in kwargs.items() if name in ("sharding_strategy", "backward_prefetch")}
    return {"name": type(wrapper).__name__, **named, "use_orig_params": kwargs.get("use_orig_params")}


def _anomaly(_switch: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {"enabled": torch.is_anomaly_enabled()}


def _scaler(scaler: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        "enabled": scaler.is_enabled(),
        "init_scale": getattr(scaler, "_init_scale", None),
        "device": getattr(scaler, "_device", None),
    }


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, int | float | str) else str(value)
