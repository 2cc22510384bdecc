"""Mode "capture": records the numbers of the first training steps, then ends the program quietly.

What is recorded, per step: every loss that a backward pass started from, every gradient right before the optimizer's
step, every parameter after it, every buffer of the program's modules, and, after the last step, what the optimizers
keep of each parameter; `inside.modes.step_state` takes down the rest. Seeds and deterministic settings are
set before the program's own code goes on, so that two captures of one program are equal bit for bit wherever the
program allows it; a program that sets its own seeds keeps them.

In `rank<k>/`: `numbers.jsonl`, one line a tensor with its name, shape and SHA-256, and `numbers.f64`, for the rounding
gate, up to 65 536 evenly strided elements of each as float64. Without `numbers.jsonl` the capture did not come to its
end: it is written last.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ...records import NUMBERS, VALUES
from ..hooks.modules import Modules
from ..imports import after_import
from ..probes.compilation import Compiling
from ..process.cudnn_search import leave_out
from ..process.garbage_collection import pass_over_torch
from ..process.nondeterminism import NondeterminismWarnings
from ..process.rendezvous import meet_apart
from ..process.write_protection import protect
from ..transparency import unseen
from ..writer import write_whole
from .capture_pause import stand_before_steps, stand_still
from .step_state import State

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

ELEMENTS = 65_536
"""Elements of each tensor that are kept for the rounding gate: enough that its root mean square error is known within a
percent."""
WAITING_BYTES = 2 << 30
"""Bytes of copies that may wait to be hashed: a step of a large model is not copied to the host as a whole."""


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Capture `recipe["steps"]` steps; `values` keeps elements, `precision` "float64" or "float32" makes it the
    reference, which may keep `host_bytes` of saved tensors on the host."""
    capture = _Capture(recipe, hub, prepare(recipe, hub))
    hub.on_torch(capture.torch_imported)
    hub.on_restart(capture.clear)
    hub.on_step(capture.step_ended)
    hub.on_exit(capture.write)


class _Capture:
    def __init__(self, recipe: dict[str, Any], hub: ProcessHooks, seed: int) -> None:
        self._recipe = recipe
        self._hub = hub
        self._seed = seed
        self._steps = int(recipe["steps"])
        self._keep = bool(recipe.get("values", False))
        self._torch: Any = None
        self._optimizers: list[Any] = []
        self._modules: Modules | None = None
        self._state: State | None = None
        self._warnings = NondeterminismWarnings()
        self._losses: list[Any] = []
        self._gradients: list[tuple[str, Any]] = []
        self._updates: dict[int, int] = {}
        self._lines: list[dict[str, Any]] = []
        self._values: list[bytes] = []
        self._hashing = Hashing()
        Compiling(hub)  # keeps the hooks on the optimizers

    def torch_imported(self, torch: ModuleType) -> None:
        try:
            self._prepare(torch)
        except Exception as error:  # noqa: BLE001 - half a capture would be worse than none
            print(f"diagnose: the program's numbers cannot be captured: {error!r}", file=sys.stderr)  # noqa: T201
            leave(1)

    def _prepare(self, torch: ModuleType) -> None:
        self._torch = torch
        make_repeatable(torch, self._seed)
        if "precision" in self._recipe:
            from .reference import install

            host_bytes = int(self._recipe.get("host_bytes", 0))
            install(torch, self._recipe["precision"], self._recipe.get("rounds_to"), host_bytes)
        stand_before_steps(self._hub, torch)
        self._watch(self._torch)

    def step_ended(self, index: int) -> None:
        """Take down what the step left; after the last one, write and leave."""
        try:
            if self._state is not None:
                self._state.step_ended()
            self._record(index)
        except Exception as error:  # noqa: BLE001 - the hub would swallow it, and the program train on to its end
            print(f"diagnose: the step's numbers could not be read: {error!r}", file=sys.stderr)  # noqa: T201
            leave(1)
        if index + 1 >= self._steps:
            self.write()
            leave(0)
        self._warnings.listen()
        stand_still(self._hub)

    def clear(self) -> None:
        """Steps turned out to be something else than was thought: what was taken down so far is none."""
        self._lines, self._values = [], []
        self._losses, self._gradients, self._updates = [], [], {}
        if self._state is not None:
            self._state.clear()

    def write(self) -> None:
        folder = Path(self._hub.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / VALUES).write_bytes(b"".join(self._values))
        if self._state is not None:
            self._state.write(folder, sorted(self._warnings.operators))
        write_whole(folder / NUMBERS, "".join(json.dumps(line) + "\n" for line in self._lines))

    def _watch(self, torch: Any) -> None:
        run_backward: Callable[..., Any] = torch.autograd.backward

        # `Tensor.backward` looks this name up on every call, so both ways to start a backward pass come by here.
        @unseen
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            self._losses.extend(root.detach().clone() for root in roots)
            return run_backward(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        # `torch.optim` deletes the name of this module.
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_pre_hook(self._before_update)
        self._modules = Modules(torch)
        self._state = State(torch, self._modules)

    def _before_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not any(seen is optimizer for seen in self._optimizers):
            self._optimizers.append(optimizer)
        update = self._updates[id(optimizer)] = self._updates.get(id(optimizer), -1) + 1
        # A fused optimizer takes the scaler's factor into its kernel; the others see gradients without it.
        scale = getattr(optimizer, "grad_scale", None)
        for name, parameter in self._parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                gradient = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
                value = gradient.clone() if scale is None else gradient / scale
                self._gradients.append((f"{name} update {update}", value))

    def _parameters(self, optimizer: Any) -> list[tuple[str, Any]]:
        place = next(at for at, seen in enumerate(self._optimizers) if seen is optimizer)
        return [
            (f"optimizer {place} group {g} parameter {p}", parameter)
            for g, group in enumerate(optimizer.param_groups)
            for p, parameter in enumerate(group["params"])
        ]

    def _record(self, step: int) -> None:
        for number, loss in enumerate(self._losses):
            self._note(step, "loss", f"backward {number}", loss)
        for name, gradient in self._gradients:
            self._note(step, "gradient", name, gradient)
        self._losses, self._gradients, self._updates = [], [], {}
        for optimizer in self._optimizers:
            for name, parameter in self._parameters(optimizer):
                self._note(step, "parameter", name, parameter)
                if step + 1 == self._steps and not self._keep:
                    self._note_kept(step, name, optimizer.state.get(parameter, {}))
        for place, module in enumerate(self._modules.with_buffers() if self._modules is not None else ()):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._note(step, "buffer", f"{type(module).__name__} {place} {name}", buffer)
        self._hashing.finish()  # before the program changes what was not copied

    def _note_kept(self, step: int, name: str, kept: dict[str, Any]) -> None:
        """Note the state of a parameter, but for counts of steps, which are tensors to some optimizers only."""
        for what, value in kept.items():
            if what != "step" and isinstance(value, self._torch.Tensor):
                self._note(step, "state", f"{what} of {name}", value)

    def _note(self, step: int, kind: str, name: str, tensor: Any) -> None:
        tensor = tensor.detach()
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        floats = tensor.is_floating_point()
        line = {
            "step": step,
            "kind": kind,
            "name": name,
            "shape": list(tensor.shape),
            "finite": bool(self._torch.isfinite(tensor).all()) if floats else True,
        }
        if self._keep:
            flat = tensor.reshape(-1)
            some = flat[:: max(1, -(-flat.numel() // ELEMENTS))].to(self._torch.float64)
            line["elements"] = some.numel()
            self._values.append(_bytes_of(some))
        else:
            self._hashing.add(line, tensor.cpu().contiguous())
        self._lines.append(line)


class Hashing:
    """Hashes tensors side by side on all cores: of a model of a gigabyte, hashing is most of a capture otherwise."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._running: list[tuple[dict[str, Any], int, concurrent.futures.Future[str]]] = []
        self._waiting_bytes = 0

    def add(self, line: dict[str, Any], held: Any) -> None:
        """Put the hash of a contiguous tensor of the host into `line`, by the time of `finish`."""
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        count = held.numel() * held.element_size()
        self._running.append((line, count, self._pool.submit(_sha256, held, count)))
        self._waiting_bytes += count
        while self._waiting_bytes > WAITING_BYTES:
            self._finish_first()

    def finish(self) -> None:
        """Wait for all hashes. No thread is left: the program may fork before its next step ends."""
        while self._running:
            self._finish_first()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _finish_first(self) -> None:
        line, count, future = self._running.pop(0)
        line["sha256"] = future.result()
        self._waiting_bytes -= count


def _sha256(held: Any, count: int) -> str:
    content = (ctypes.c_char * count).from_address(held.data_ptr()) if count else b""
    return hashlib.sha256(content).hexdigest()


def prepare(recipe: dict[str, Any], hub: ProcessHooks) -> int:
    """Keep a process from the files and ports of others, and seed it; return the seed."""
    pass_over_torch(hub)
    protect(recipe, hub)
    meet_apart(recipe, hub)
    leave_out(recipe, hub)
    seed = int(recipe.get("seed", 0))
    _seed(seed)
    return seed


def make_repeatable(torch: Any, seed: int) -> None:
    """Let torch draw the same numbers and sum in the same order in each run."""
    _seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    after_import("torch._inductor.config", _draw_as_eager_does)


def _draw_as_eager_does(config: Any) -> None:
    """Let compiled code take its random numbers from the generator of eager code: other dropout is no other result."""
    config.fallback_random = True


def _bytes_of(tensor: Any) -> bytes:
    held = tensor.cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel() * held.element_size())


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        with contextlib.suppress(AttributeError):  # only half imported yet
            numpy.random.seed(seed)


def leave(code: int) -> NoReturn:
    """End the process without its own exit code path; its children are ended first, so that none is orphaned."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
