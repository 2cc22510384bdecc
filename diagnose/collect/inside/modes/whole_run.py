"""Mode "whole_run": lets a program run to its end and records what it leaves behind, for two runs to be compared.

Seeds and deterministic settings are those of the numerics gate. Recorded in `whole_run.json` of `rank<k>/`, at the
interpreter's exit, whether the program ended normally or by an exception: the loss of every backward pass, hashes of
the final parameters, how many optimizer steps were taken, and what happened to files (`file_events`). Standard streams
and files themselves are read by the controller.

The recipe says how the run differs from the program's own:

    batches   a DataLoader yields its first batches and its last one, so many in all; loops that the controller marked
              with `diagnose_shortened(range(…))` take as many turns of one step, and `turns` turns of several steps
    leave     {"how": "exception" | "interrupt", "call": k}: raised in the k-th call of an optimizer's `step`; with
              `"ends": true` a program that trains on all the same is ended some calls later
    seconds   after so many seconds of training the program is interrupted as by Ctrl-C, which the record tells; one
              that trains on all the same is ended some calls later
    disturb   parameters are multiplied by 1 ± this before the first update: how far rounding carries the figures;
              `disturb_seed` draws the signs
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...records import STDERR, STDOUT, WHOLE_RUN
from ..imports import after_import
from ..probes.compilation import Compiling
from ..probes.file_events import FileEvents
from ..transparency import unseen
from ..writer import write_whole
from .capture import _bytes_of, leave, make_repeatable, prepare

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

MESSAGE = "raised by diagnose to see what the program leaves behind"
_MORE_CALLS = 10
"""Calls of an optimizer after which a program that was interrupted is taken to train on."""
_NS_PER_S = 1_000_000_000


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Record the whole run under the recipe."""
    run = _WholeRun(recipe, hub, prepare(recipe, hub))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a job in the background of a shell inherits it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _number_temporary_files()
    _keep_streams_apart(Path(str(recipe["folder"])))
    builtins.diagnose_shortened = run.shortened  # type: ignore[attr-defined]  # the controller writes this name
    hub.on_torch(run.torch_imported)
    hub.on_step(run.step_ended)
    hub.on_exit(run.write)


class _WholeRun:
    def __init__(self, recipe: dict[str, Any], hub: ProcessHooks, seed: int) -> None:
        self._hub = hub
        self._seed = seed
        self._batches: int | None = recipe.get("batches")
        self._turns = int(recipe.get("turns", 3))
        self._leave: dict[str, Any] = recipe.get("leave") or {}
        self._limit_ns = int(float(recipe.get("seconds", 0)) * _NS_PER_S)
        self._disturb = float(recipe.get("disturb", 0.0))
        self._disturb_seed = int(recipe.get("disturb_seed", 0))
        self._torch: Any = None
        self._optimizers: list[Any] = []
        self._losses: list[Any] = []
        self._calls = 0
        self._steps = 0
        self._began_ns = 0
        self._step_ns: list[int] = []
        self._cut = False
        self._left = False
        self._ends_after: int | None = None
        """The call at which the program was told to end."""
        self._files = FileEvents(str(recipe["root"]), str(recipe["scratch"]), str(recipe["private"]), hub.pid)
        Compiling(hub)  # keeps the hooks on the optimizers

    def torch_imported(self, torch: ModuleType) -> None:
        self._torch = torch
        make_repeatable(torch, self._seed)
        self._files.watch_torch(torch)
        if self._batches is not None:
            after_import("torch.utils.data.dataloader", lambda module: _shorten_loaders(module, self._batches or 0))
        self._watch_backward(self._torch)
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_pre_hook(self._before_update)

    def shortened(self, values: range) -> _Shortened:
        """Stands around the `range` of a loop that trains."""
        return _Shortened(values, self)

    def turns_for(self, steps: int) -> int | None:
        """Return how many turns a loop takes of which one has so many steps; None: all."""
        if self._batches is None or steps == 0:
            return None
        return self._batches if steps == 1 else self._turns

    @property
    def steps(self) -> int:
        """Training steps so far."""
        return self._steps

    def step_ended(self, _index: int) -> None:
        self._steps += 1
        now_ns = time.monotonic_ns()
        self._began_ns = self._began_ns or now_ns
        self._step_ns.append(now_ns)

    def _watch_backward(self, torch: Any) -> None:
        run_backward = torch.autograd.backward

        @unseen
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for root in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
                loss = root.detach()
                loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
                self._losses.append(loss.sum(dtype=torch.float64) if loss.is_floating_point() else None)
            return run_backward(tensors, *args, **kwargs)

        torch.autograd.backward = backward

    def _before_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # Not guarded: what is raised here is to reach the program.
        self._calls += 1
        if self._ends_after is not None and self._calls > self._ends_after + _MORE_CALLS:
            self.write()
            leave(1)
        if not any(seen is optimizer for seen in self._optimizers):
            self._optimizers.append(optimizer)
            if self._disturb:
                self._disturb_parameters(optimizer)
        if self._calls == self._leave.get("call") and not self._left:
            self._left = True
            self._ends_after = self._calls if self._leave.get("ends") else None
            if self._leave["how"] == "exception":
                raise RuntimeError(MESSAGE)
            signal.raise_signal(signal.SIGINT)
        late = self._limit_ns and self._began_ns and time.monotonic_ns() - self._began_ns > self._limit_ns
        if late and not self._cut:
            self._cut = True
            self._ends_after = self._calls
            signal.raise_signal(signal.SIGINT)

    def _disturb_parameters(self, optimizer: Any) -> None:
        torch = self._torch
        generator = torch.Generator().manual_seed(self._disturb_seed)
        with torch.no_grad():
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                if parameter.is_floating_point():
                    noise = torch.rand(parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + self._disturb * noise.to(parameter.device, parameter.dtype))

    def write(self) -> None:
        """Leave `whole_run.json` there."""
        folder = Path(self._hub.folder)
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            "losses": [None if loss is None else float(loss) for loss in self._losses],
            "parameters": self._hashes(),
            "calls": self._calls,
            "steps": self._steps,
            "step_ns": _median_gap(self._step_ns),
            "cut": self._cut,
            "left": self._left,
            "files": self._files.events,
            "elsewhere": sorted(self._files.elsewhere),
        }
        write_whole(folder / WHOLE_RUN, json.dumps(record))

    def _hashes(self) -> list[str]:
        found = []
        for optimizer in self._optimizers:
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                value = parameter.detach()
                value = value.full_tensor() if hasattr(value, "full_tensor") else value
                found.append(hashlib.sha256(_bytes_of(value)).hexdigest()[:16])
        return found


class _Shortened:
    """A `range` of which a training loop takes the first values and the last one."""

    def __init__(self, values: range, run: _WholeRun) -> None:
        self._values = values
        self._run = run

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._values)

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __iter__(self) -> Iterator[int]:
        turns, most, last = 0, None, len(self._values) - 1
        place = 0
        while place <= last:
            before = self._run.steps
            yield self._values[place]
            steps = self._run.steps - before
            turns += steps > 0
            most = self._run.turns_for(steps)
            place = max(place + 1, last) if most is not None and turns >= most - 1 else place + 1


class _ShortSampler:
    """The first batches of a sampler and its last."""

    def __init__(self, sampler: Any, most: int) -> None:
        self._sampler = sampler
        self._most = most

    def __len__(self) -> int:
        return min(len(self._sampler), self._most)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._sampler)
        yield from islice(batches, self._most - 1)
        last = None
        for batch in batches:
            last = (batch,)
        if last is not None:
            yield last[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _shorten_loaders(dataloader: Any, most: int) -> None:
    """Let every loader have at most so many batches: of a map-style dataset the last is the original's last."""
    loader, kinds = dataloader.DataLoader, dataloader._DatasetKind
    index_sampler, length = loader._index_sampler, loader.__len__
    next_batch = dataloader._BaseDataLoaderIter.__next__

    def short_index_sampler(self: Any) -> Any:
        sampler = index_sampler.fget(self)
        countable = self._dataset_kind == kinds.Map and hasattr(sampler, "__len__")
        return _ShortSampler(sampler, most) if countable else sampler

    def short_length(self: Any) -> int:
        whole = int(length(self))
        return min(whole, most) if self._dataset_kind == kinds.Iterable else whole

    @unseen
    def short_next(self: Any) -> Any:
        if self._dataset_kind == kinds.Iterable and self._num_yielded >= most:
            raise StopIteration
        return next_batch(self)

    loader._index_sampler = property(short_index_sampler)
    loader.__len__ = short_length
    dataloader._BaseDataLoaderIter.__next__ = short_next
    dataloader._BaseDataLoaderIter.next = short_next


def _number_temporary_files() -> None:
    """Let names of temporary files be the same in every run."""
    numbers = count()
    tempfile._RandomNameSequence.__next__ = lambda _self: f"{next(numbers):08d}"  # type: ignore[attr-defined]


def _keep_streams_apart(folder: Path) -> None:
    """Let each rank of a launcher write into files of its own: lines of several ranks would mix by chance."""
    rank = os.environ.get("RANK", "")
    if not rank.isdigit() or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    own = folder / f"rank{rank}"
    own.mkdir(parents=True, exist_ok=True)
    for stream, number, name in ((sys.stdout, 1, STDOUT), (sys.stderr, 2, STDERR)):
        stream.flush()
        descriptor = os.open(own / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)


def _median_gap(times_ns: list[int]) -> int:
    gaps = sorted(later - earlier for earlier, later in pairwise(times_ns))
    return gaps[len(gaps) // 2] if gaps else -1
