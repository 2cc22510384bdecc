"""The probes by name, as the files of `inside.experiments` declare them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from diagnose.collect.inside import experiments


@dataclass(frozen=True)
class Probe:
    """One file of that folder."""

    name: str
    doc: str
    measures: tuple[str, ...]
    """Rules of which it takes away the whole cause."""
    bounds: tuple[str, ...]
    """Rules of which it takes away more than the cause."""
    settings: tuple[Mapping[str, Any], ...] = ({},)
    """The settings that are tried one after the other."""
    compiles: bool = False
    """Whether a start of it waits for a compiler."""

    @property
    def title(self) -> str:
        """The first line of its documentation."""
        return self.doc.partition("\n")[0]


@cache
def load_probes() -> Mapping[str, Probe]:
    """All of them, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(experiments.__path__))
    probes = (_probe(name) for name in names)
    return {probe.name: probe for probe in probes}


def _probe(name: str) -> Probe:
    module = importlib.import_module(f"{experiments.__name__}.{name}")
    return Probe(
        name.replace("_", "-"),
        inspect.getdoc(module) or "",
        tuple(module.MEASURES),
        tuple(module.BOUNDS),
        tuple(getattr(module, "SETTINGS", ({},))),
        getattr(module, "COMPILES", False),
    )
