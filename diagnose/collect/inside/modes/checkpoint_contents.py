"""The keys and shapes that a checkpoint (`state_dict()`) of the program's models would contain.

Wrappers that hand their part's state on under a prefix (`_orig_mod.` of torch.compile, `module.` of data parallelism)
are looked through: a program saves what is inside them. A tensor counts once, under the first of its names: a program
that compiles itself may keep the compiled model beside the one that it saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..hooks.modules import Modules

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
_PARALLEL = frozenset({"DataParallel", "DistributedDataParallel"})
_SHARDED = "FullyShardedDataParallel"
"""The wrapper whose `state_dict()` gathers all weights: too much for a look at names."""


def checkpoints(modules: Modules) -> list[dict[str, list[int]]] | None:
    """Keys and shapes of every module that is no part of another and keeps something; None where one cannot be
    asked.
    """
    found: list[dict[str, list[int]]] = []
    for root in modules.roots():
        if any(type(module).__name__ == _SHARDED for module in root.modules()):
            return None
        try:
            state = root.state_dict()
        except Exception:  # noqa: BLE001 - a class of the user's may refuse; that is no failure of the program
            return None
        hidden = list(_prefixes(root))
        shapes = {_named(key, hidden): _shape(value) for key, value in _each_once(state)}
        if shapes:
            found.append(shapes)
    return found


def _each_once(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a state without those that are a second name of an earlier one's memory."""
    seen = set()
    for key, value in state.items():
        view = _memory(value)
        if view is None or view not in seen:
            yield key, value
        seen.add(view)


def _memory(value: Any) -> tuple[Any, ...] | None:
    """Return which elements of memory a tensor is; None for what has none, or does not say."""
    try:
        address = value.data_ptr()
        return (address, value.device, tuple(value.shape), value.stride(), value.dtype) if address else None
    except Exception:  # noqa: BLE001 - sparse tensors, and tensor classes of the user's, may refuse
        return None


def _prefixes(root: Any) -> Iterator[str]:
    """Yield where wrappers put their part: `module.` at the front, and others anywhere."""
    if type(root).__name__ in _PARALLEL:
        yield "module"
    yield from _WRAPPERS


def _named(key: str, hidden: list[str]) -> str:
    parts = key.split(".")
    if parts[0] in hidden:
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _WRAPPERS)


def _shape(value: Any) -> list[int]:
    return list(value.shape) if hasattr(value, "shape") else []
