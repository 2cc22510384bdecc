"""The optimizers' state besides the parameters, from the recorded sites."""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.model import Site

_TENSORS = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "adamax": 2, "lion": 1, "rmsprop": 1, "adagrad": 1}
"""Of a parameter's size, that optimizers keep."""
_BYTES = 4
"""Of an element of float32."""


def gradient_bytes(sites: Iterable[Site]) -> int:
    """Bytes of the gradients of all that the optimizers train."""
    return sum(_BYTES * _elements(site) for site in sites if site.kind == "optimizer")


def state_bytes(sites: Iterable[Site]) -> int:
    """Return the bytes that the optimizers keep from step to step. Unknown optimizers count zero."""
    return sum(_BYTES * _elements(site) * _tensors(site) for site in sites if site.kind == "optimizer")


def _elements(site: Site) -> int:
    elements = site.arguments.get("elements")
    return elements if isinstance(elements, int) else 0


def _tensors(site: Site) -> int:
    name = str(site.arguments.get("name", "")).lower()
    return int(bool(site.arguments.get("momentum"))) if name == "sgd" else _TENSORS.get(name, 0)
