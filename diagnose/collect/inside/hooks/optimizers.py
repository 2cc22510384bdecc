"""The program's optimizers: their parameters, their settings, and the state they keep for each parameter."""

from __future__ import annotations

import importlib
from typing import Any

_HOW = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""How an optimizer computes, not what."""


class Optimizers:
    """The optimizers that have stepped so far, in the order of their first steps."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        # `torch.optim` deletes the name of this module.
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(self._stepped)

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not any(seen is optimizer for seen in self.seen):
            self.seen.append(optimizer)

    def made_of(self) -> list[dict[str, Any]]:
        """Per optimizer its groups, each with shapes, settings, and the names of what is kept per parameter."""
        return [_made_of(optimizer) for optimizer in self.seen]


def _made_of(optimizer: Any) -> dict[str, Any]:
    groups = []
    for group in optimizer.param_groups:
        parameters = list(group["params"])
        kept = [sorted(optimizer.state.get(parameter, {})) for parameter in parameters]
        groups.append(
            {
                "shapes": [list(parameter.shape) for parameter in parameters],
                "settings": settings_of(group),
                "kept": kept,
            }
        )
    # With its module: a class of the program's own may have the name of one of torch's.
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    return {"kind": kind, "groups": groups}


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """The scalar settings of a group, those left out that do not change what is computed."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        if name in _HOW:
            continue
        if hasattr(value, "item") and getattr(value, "numel", lambda: 1)() == 1:
            value = value.item()
        if isinstance(value, (list, tuple)):
            value = [one.item() if hasattr(one, "item") else one for one in value]
            if not all(isinstance(one, (bool, int, float)) for one in value):
                continue
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            continue
        found[name] = value
    return found
