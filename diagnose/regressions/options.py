"""Options of loaders, optimizers and torch that a commit gave up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diagnose.regressions.costs import Costs, Line

_GIVEN_UP: Mapping[str, Mapping[str, bool]] = {
    "DataLoader": {"pin_memory": True, "persistent_workers": True},
    "optimizer": {"fused": True, "capturable": True},
    "DistributedDataParallel": {"gradient_as_bucket_view": True, "static_graph": True, "find_unused_parameters": False},
    "compile": {"fullgraph": True},
}
"""Options by the kind of what they build, each with its faster value."""
_FOREACH = "optimizer: foreach is False: it launches kernels for each parameter"
FEWER_WORKERS = 4
"""The factor by which a loader may lose workers: fewer of them are a choice that fits the cores of a machine."""
_FASTER: Mapping[str, Any] = {
    "cudnn.benchmark": True,
    "cudnn.deterministic": False,
    "deterministic algorithms": False,
    "anomaly detection": False,
}


def lost_options(base: Costs, head: Costs) -> Iterator[tuple[str, Line | None]]:
    """Yield a sentence and the line that builds it, where one does, for each option that was faster before."""
    for kind in _GIVEN_UP:
        before = [site for site in base.sites if site["kind"] == kind]
        now = [site for site in head.sites if site["kind"] == kind]
        if len(before) == len(now):
            for old, new in zip(before, now, strict=True):
                for said in _lost(kind, old["arguments"], new["arguments"]):
                    yield said, (new["file"], new["line"])
    anomaly = [site for site in head.sites if site["kind"] == "anomaly" and site["arguments"].get("enabled")]
    if anomaly and not any(site["kind"] == "anomaly" for site in base.sites):
        yield "anomaly detection is on: it checks every gradient for NaN", (anomaly[0]["file"], anomaly[0]["line"])
    for name, faster in _FASTER.items():
        if base.settings.get(name) == faster and head.settings.get(name) == (not faster) and not anomaly:
            yield f"{name} is {head.settings[name]} instead of {faster}", None
    if base.settings.get("float32 matmul precision") != "highest" == head.settings.get("float32 matmul precision"):
        yield "float32 matrix products do without TF32", None


def _lost(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if kind == "DataLoader":
        before, now = old.get("num_workers") or 0, new.get("num_workers") or 0
        if before and now * FEWER_WORKERS <= before:
            yield f"the loader has {now} workers instead of {before}"
            if not now:
                return
    for name, faster in _GIVEN_UP[kind].items():
        if old.get(name) is not None and bool(old[name]) == faster and bool(new.get(name)) != faster:
            yield f"{kind}: {name} is {new.get(name)} instead of {old[name]}"
    if kind == "optimizer" and new.get("foreach") is False is not old.get("foreach"):
        yield _FOREACH
