"""A probe's changes to the process of one arm, and whether its answer can be relied on.

A probe stands beneath the hooks that count steps and time the loader, so that both go on as ever. It says how often it
came into effect, what it had to leave as it is, and why its answer would mislead: the arm then ends with that reason.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .transparency import hide_functions, unseen

if TYPE_CHECKING:
    from .process_hooks import ProcessHooks

PACKAGE = "experiments"


class Change:
    """One probe at work."""

    def __init__(self, hub: ProcessHooks, setting: dict[str, Any], step_ns: int = 0) -> None:
        self.hub = hub
        self.setting = setting
        self.step_ns = step_ns
        """The program's own step, as the run before saw it."""
        self.at_step = -1
        """The step in which a probe that acts once a step last did."""
        self.times = 0
        """How often what the probe replaces was asked for, and answered by the probe."""
        self.nothing = "the program never does what this probe replaces"
        """The reason to give where that never happened."""
        self.steps = 0
        """Steps taken so far."""
        self.least_steps = 0
        """The fewest steps of the warm-up."""
        self.on_step: Callable[[], None] = lambda: None
        """Called at each end of a step."""
        self._left: dict[str, None] = {}
        self._refused: str | None = None
        self._torch: ModuleType | None = None

    @property
    def torch(self) -> Any:
        """The program's torch."""
        assert self._torch is not None  # probes start when it has come
        return self._torch

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put `make(original)` in the place of a function of torch's, as invisible to the program as can be."""
        original = getattr(owner, name)
        function = unseen(functools.wraps(original)(make(original)))
        setattr(owner, name, staticmethod(function) if _is_static(owner, name) else function)

    def leave(self, what: str) -> None:
        """Note what the probe could not take away: the answer is a lower bound."""
        self._left.setdefault(what)

    def refuse(self, reason: str) -> None:
        """Note why the answer would mislead; the first reason stands."""
        self._refused = self._refused or reason

    def step_ended(self) -> None:
        """A step is over."""
        self.steps += 1
        self.on_step()

    @property
    def reason(self) -> str | None:
        """Why not to go on, so far."""
        return self._refused or (None if self.times else self.nothing)

    @property
    def left(self) -> list[str]:
        """The calls and objects that the probe left unchanged, in words."""
        return list(self._left)

    def begin(self, name: str, torch: ModuleType) -> None:
        """Start the probe of that name."""
        self._torch = torch
        try:
            importlib.import_module(f".{PACKAGE}.{name.replace('-', '_')}", __package__).start(self)
        except Exception as error:  # noqa: BLE001 - the program would run on unchanged, and be taken for the probe
            self.refuse(f"the probe does not work with torch {torch.__version__}: {type(error).__name__}: {error}")
        hide_functions()


def _is_static(owner: Any, name: str) -> bool:
    return isinstance(owner, type) and isinstance(owner.__dict__.get(name), staticmethod)


def begin(recipe: dict[str, Any], hub: ProcessHooks) -> Change | None:
    """Start the probe that the recipe names, beneath the hooks of steps; None where it names none."""
    wanted = recipe.get("probe")
    if not wanted:
        return None
    change = Change(hub, dict(wanted.get("setting") or {}), int(wanted.get("step_ns", 0)))
    hub.beneath_steps(lambda torch: change.begin(str(wanted["name"]), torch))
    return change
