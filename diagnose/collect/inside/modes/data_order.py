"""Mode "data_order": records what the program's first training loader yields, then ends the program.

When the first training step has ended, the loader that training took its last batch from is gone through again, in
this process and with the program's own settings, without training: `passes` times up to `batches` batches, each hashed.
Two programs whose loaders yield the same samples in the same order leave the same hashes; workers that share a file
position, a race, or another order of random numbers do not. Seeds are those of the numerics gate.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...records import BATCHES
from ..imports import after_import
from ..process.garbage_collection import pass_over_torch
from ..process.rendezvous import meet_apart
from ..process.write_protection import protect
from ..writer import write_whole
from .capture import _bytes_of, _seed, leave

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Record `recipe["passes"]` passes of at most `recipe["batches"]` batches each."""
    pass_over_torch(hub)
    protect(recipe, hub)
    meet_apart(recipe, hub)
    _seed(0)
    order = _DataOrder(recipe, hub)
    hub.on_torch(order.torch_imported)
    hub.on_step(order.step_ended)


class _DataOrder:
    def __init__(self, recipe: dict[str, Any], hub: ProcessHooks) -> None:
        self._hub = hub
        self._batches = int(recipe["batches"])
        self._passes = int(recipe["passes"])
        self._torch: Any = None
        self._loader: Any = None
        self._recording = False

    def torch_imported(self, torch: ModuleType) -> None:
        self._torch = torch
        _seed(0)
        self._torch.manual_seed(0)
        after_import("torch.utils.data.dataloader", self._watch_loaders)

    def _watch_loaders(self, dataloader: Any) -> None:
        """Know of the loader whose batch was taken last."""
        make = dataloader.DataLoader.__iter__

        def watched(loader: Any) -> Any:
            if not self._recording:
                self._loader = loader
            return make(loader)

        dataloader.DataLoader.__iter__ = watched

    def step_ended(self, _index: int) -> None:
        """Record after the first step, and leave."""
        self._recording = True
        try:
            passes = [] if self._loader is None else [self._hashes() for _ in range(self._passes)]
        except Exception as error:  # noqa: BLE001 - the hub would swallow it, and the program train on to its end
            print(f"diagnose: the loader's batches could not be read: {error!r}", file=sys.stderr)  # noqa: T201
            leave(1)
        write_whole(Path(self._hub.folder) / BATCHES, json.dumps({"passes": passes}))
        leave(0)

    def _hashes(self) -> list[str]:
        _seed(0)
        self._torch.manual_seed(0)
        found = []
        for batch in islice(iter(self._loader), self._batches):
            digest = hashlib.sha256()
            for part in _flat(batch):
                digest.update(self._bytes(part))
            found.append(digest.hexdigest()[:16])
        return found

    def _bytes(self, part: Any) -> bytes:
        if isinstance(part, self._torch.Tensor):
            value = part.detach().cpu()
            value = value.to_dense() if value.layout != self._torch.strided else value
            return repr((value.dtype, tuple(value.shape))).encode() + _bytes_of(value)
        if type(part).__module__ == "numpy":
            return part.tobytes() if hasattr(part, "tobytes") else repr(part).encode()
        simple = isinstance(part, int | float | str | bytes | bool) or part is None
        return repr(part).encode() if simple else type(part).__qualname__.encode()


def _flat(value: Any) -> Iterator[Any]:
    """The leaves of a nested batch: of mappings, sequences and objects with fields, in their order."""
    if isinstance(value, dict) or hasattr(value, "keys"):
        for key in value:
            yield str(key)
            yield from _flat(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _flat(getattr(value, name))
    else:
        yield value
