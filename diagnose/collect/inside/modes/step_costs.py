"""Mode "step_costs": what each of a program's first steps would launch, copy, wait for and hold on a device.

The program runs on the CPU, for a device that is pretended (`inside.hooks.pretended_device`). The first two steps are
left out: what is built or printed once belongs to them, also what follows the first optimizer step. `costs.json` in
`rank<k>/` has the steps after them, and what the program built.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...records import COSTS
from ..guard import failures
from ..hooks.pretended_device import Residence, pretend
from ..hooks.sites import Sites
from ..probes.operator_costs import OperatorCosts
from ..process.rendezvous import meet_apart
from ..process.seeds import Seeds
from ..process.write_protection import protect
from ..writer import write_whole
from .capture import leave

if TYPE_CHECKING:
    from ..process_hooks import ProcessHooks

LEFT_OUT = 2
"""Steps before those that are counted."""


def start(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Count `recipe["steps"]` steps under `recipe["seed"]`."""
    protect(recipe, hub)
    meet_apart(recipe, hub)
    costs = _StepCosts(int(recipe["steps"]), Seeds(int(recipe["seed"])), hub)
    hub.beneath_steps(costs.torch_arrived)
    hub.on_restart(costs.restart)
    hub.on_step(costs.step_ended)
    hub.on_exit(costs.write)


class _StepCosts:
    def __init__(self, steps: int, seeds: Seeds, hub: ProcessHooks) -> None:
        self._wanted = steps
        self._seeds = seeds
        self._hub = hub
        self._torch: Any = None
        self._residence = Residence()
        self._costs = OperatorCosts(self._residence)
        self._sites = Sites()
        self._steps: list[dict[str, Any]] = []
        self._held: dict[int, tuple[int, int]] = {}
        """Parameters of each optimizer, by its id: tensors and elements."""
        self._on_host = False
        seeds.set_all()

    def torch_arrived(self, torch: ModuleType) -> None:
        """Pretend a device before the program builds anything."""
        self._torch = torch
        pretend(torch, self._residence, self._costs)
        self._seeds.set_all(torch)
        self._seeds.shift(torch)
        self._sites.install(torch)
        self._hub.steps.on_optimizer = self._optimizer_stepped
        self._costs.watch(torch)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._held[id(optimizer)] = len(parameters), sum(parameter.numel() for parameter in parameters)
        self._on_host = not any(map(self._residence.holds, parameters))

    def restart(self) -> None:
        """Steps turned out to be something else: none so far."""
        self._steps = []
        self._begin()

    def step_ended(self, index: int) -> None:
        """Put down the counts of a step, unless it was one of the first."""
        if index >= LEFT_OUT:
            self._steps.append(self._counted())
        elif self._on_host:
            self._residence.everything = True
        if len(self._steps) >= self._wanted:
            self.write()
            leave(0)
        self._begin()

    def _begin(self) -> None:
        self._costs.counts.clear()
        self._costs.sizes.clear()
        self._residence.peak = self._residence.live

    def _counted(self) -> dict[str, Any]:
        sizes = self._costs.sizes
        return {
            "costs": [[*where, count, sizes[where]] for where, count in sorted(self._costs.counts.items())],
            "peak_bytes": self._residence.peak,
            "live_bytes": self._residence.live,
            "graph_breaks": self._graph_breaks(),
            "recorded_tensors": self._recorded_tensors(),
        }

    def _recorded_tensors(self) -> int:
        """Return how many living tensors keep the graph of a backward pass."""
        kind = self._torch.Tensor
        return sum(type(one) is kind and one.grad_fn is not None for one in gc.get_objects())

    def _graph_breaks(self) -> int:
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        return sum(counters.get("graph_break", {}).values())

    def write(self) -> None:
        """Leave everything in a file of the rank's folder."""
        folder = Path(self._hub.folder)
        folder.mkdir(parents=True, exist_ok=True)
        backends = self._torch.backends
        found = {
            "steps": self._steps,
            "sites": [json.loads(line) for _, lines in self._sites.drain() for line in lines.splitlines()],
            "tensors": sum(tensors for tensors, _ in self._held.values()),
            "elements": sum(elements for _, elements in self._held.values()),
            "on_host": self._on_host,
            "settings": {
                "float32 matmul precision": self._torch.get_float32_matmul_precision(),
                "cudnn.benchmark": bool(backends.cudnn.benchmark),
                "cudnn.deterministic": bool(backends.cudnn.deterministic),
                "deterministic algorithms": self._torch.are_deterministic_algorithms_enabled(),
                "anomaly detection": self._torch.is_anomaly_enabled(),
            },
            "failures": failures,
        }
        write_whole(folder / COSTS, json.dumps(found))
