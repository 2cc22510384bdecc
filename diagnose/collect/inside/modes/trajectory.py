"""Mode "trajectory": the losses of a program's first steps under one seed, taken down without slowing it.

Nothing is made deterministic and nothing waits for the device: each step leaves one number there, the sum of what its
backward passes started from (without the factor of a GradScaler), and all are read at the end. `trajectory.json` in
`rank<k>/` has them with the memory held after every step, and what the optimizers were made of after the first step
and after step `FULL`. A program that ends before leaves the steps that it took. Steps whose update a loss scaler leaves
out change nothing, and are not counted: the next one is as far as the original was.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...records import TRAJECTORY
from ..hooks.optimizers import Optimizers
from ..probes.compilation import Compiling
from ..process.cudnn_search import leave_out
from ..process.garbage_collection import pass_over_torch
from ..process.rendezvous import meet_apart
from ..process.seeds import Seeds
from ..process.write_protection import protect
from ..resident_memory import resident_bytes
from ..transparency import unseen
from ..writer import write_whole
from .capture import leave
from .capture_pause import stand_before_steps, stand_still

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

FULL = 50
"""Steps after which the optimizers are looked at again."""
MOST_LEFT_OUT = 24
"""Steps without an update that are not counted: GradScaler halves its factor of 65,536 in each, which then is below
0.01. A program that leaves out more has another reason."""
_UNSCALED = "_diagnose_unscaled"


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Take down `recipe["steps"]` steps under `recipe["seed"]`."""
    pass_over_torch(hub)
    protect(recipe, hub)
    meet_apart(recipe, hub)
    leave_out(recipe, hub)
    trajectory = _Trajectory(int(recipe["steps"]), Seeds(int(recipe["seed"])), hub)
    hub.on_torch(trajectory.torch_imported)
    hub.on_restart(trajectory.clear)
    hub.on_step(trajectory.step_ended)
    hub.on_exit(trajectory.write)


class _Trajectory:
    def __init__(self, steps: int, seeds: Seeds, hub: ProcessHooks) -> None:
        self._steps = steps
        self._seeds = seeds
        self._hub = hub
        self._torch: Any = None
        self._optimizers: Optimizers | None = None
        self._now: Any = None
        self._losses: list[Any] = []
        self._memory: list[int] = []
        self._made_of: dict[int, Any] = {}
        self._updates = 0
        """Optimizers' steps so far."""
        self._left_out = 0
        seeds.set_all()
        Compiling(hub)

    def torch_imported(self, torch: ModuleType) -> None:
        self._torch = torch
        self._seeds.set_all(torch)
        self._seeds.shift(torch)
        self._optimizers = Optimizers()
        stand_before_steps(self._hub, torch)
        _keep_unscaled(torch)
        self._watch_backward(torch)

    def _watch_backward(self, torch: Any) -> None:
        run_backward = torch.autograd.backward

        @unseen
        @functools.wraps(run_backward)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for root in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
                loss = getattr(root, _UNSCALED, root).detach()
                loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
                total = loss.sum(dtype=torch.float32)
                self._now = total if self._now is None else self._now + total.to(self._now.device)
            return run_backward(tensors, *args, **kwargs)

        torch.autograd.backward = backward

    def step_ended(self, _index: int) -> None:
        """Note loss and memory after every step."""
        now, self._now = self._now, None
        if self._has_no_update():
            self._left_out += 1
        else:
            self._losses.append(now)
            self._memory.append(self._held_bytes())
            self._look_at_optimizers(len(self._losses))
        if len(self._losses) >= self._steps:
            self.write()
            leave(0)
        stand_still(self._hub)

    def _has_no_update(self) -> bool:
        """Whether a loss scaler left the update of the newest step out."""
        steps, before = self._hub.steps, self._updates
        self._updates = steps.optimizer_calls
        return steps.found_by == "optimizer" and self._updates == before and self._left_out < MOST_LEFT_OUT

    def _look_at_optimizers(self, steps: int) -> None:
        if steps in (1, FULL) and self._optimizers is not None:
            self._made_of[steps] = self._optimizers.made_of()

    def clear(self) -> None:
        """Steps turned out to be something else: none so far."""
        self._losses, self._memory, self._made_of, self._now = [], [], {}, None

    def write(self) -> None:
        """Read what is on the device, and put everything down."""
        folder = Path(self._hub.folder)
        folder.mkdir(parents=True, exist_ok=True)
        found = {
            "losses": [None if loss is None else float(loss) for loss in self._losses],
            "memory_bytes": self._memory,
            "optimizers": {str(step): made_of for step, made_of in self._made_of.items()},
            "seeds_itself": self._seeds.set_by_program,
        }
        write_whole(folder / TRAJECTORY, json.dumps(found))

    def _held_bytes(self) -> int:
        """Bytes of live tensors on the device; resident memory where no device is in use."""
        if self._hub.uses_cuda:
            return int(self._torch.cuda.memory_allocated())
        held = resident_bytes()
        return -1 if held is None else held


def _keep_unscaled(torch: Any) -> None:
    """Let a loss that GradScaler scaled remember what it was: the factor is no part of the training."""
    scaler = torch.amp.GradScaler
    scale = scaler.scale

    @unseen
    @functools.wraps(scale)
    def scaled(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if isinstance(outputs, torch.Tensor) and result is not outputs:
            setattr(result, _UNSCALED, outputs.detach())
        return result

    scaler.scale = scaled
