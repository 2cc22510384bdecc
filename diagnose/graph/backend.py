"""The backend: Dynamo gives a graph and real inputs; what pays and is equivalent is rewritten; the rest goes on."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from diagnose import kernels
from diagnose.graph import account
from diagnose.graph.account import SiteRecord
from diagnose.graph.capture import NotCapturedError, captured
from diagnose.graph.equivalence import Checked, check
from diagnose.graph.finding import sites_of
from diagnose.graph.nodes import held, hinted, place_of
from diagnose.graph.options import Options, parsed
from diagnose.graph.patterns import PATTERNS
from diagnose.graph.rewriting import rewrite
from diagnose.graph.site import Pattern, Site

FIRST_STEPS = 3
"""Calls whose peak memory is reported: allocators and optimizers have what they need after two."""

NOT_CHECKED = "it could not be checked"

Compiled = Callable[..., Any]


def backend(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """What `torch.compile(model, backend="diagnose")` calls with each graph of the model."""
    chosen = parsed(options, mode, tuple(pattern.name for pattern in PATTERNS))
    records, accepted, note = _decided(module, inputs, chosen)
    rewrite(module, accepted)
    device = _device(module)
    name = chosen.inner if isinstance(chosen.inner, str) else getattr(chosen.inner, "__name__", "a backend of yours")
    number = account.entered(str(device), name, records, note, chosen.prints)
    compiled = _handed_on(module, inputs, chosen)
    return _watched(compiled, device, number, chosen.prints) if accepted and device.type == "cuda" else compiled


def _decided(
    module: fx.GraphModule, inputs: Sequence[Any], options: Options
) -> tuple[list[SiteRecord], list[Site], str]:
    """What becomes of each site, those to rewrite, and what is to be said of the graph."""
    left: dict[Site, str] = {}
    patterns: dict[Site, Pattern] = {}
    seen: set[fx.Node] = set()
    taken: set[fx.Node] = set()
    for pattern, site in sites_of(module.graph, [each for each in PATTERNS if options.considers(each.name)]):
        why = _left(pattern, site, options)
        # What one pattern leaves, another may still have; that two leave it is said once.
        if taken.isdisjoint(site.removed) and not (why and seen & set(site.removed)):
            patterns[site], left[site] = pattern, why
            seen.update(site.removed)
            taken.update(() if why else site.removed)
    wanted = [site for site in left if not left[site]]
    outcomes, note = _checked(module, inputs, wanted) if wanted else ({}, "")
    for site in wanted:
        left[site] = outcomes[site].refused if site in outcomes else NOT_CHECKED
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    records = [
        _record(patterns[site], site, left[site], outcomes.get(site), options)
        for site in sorted(left, key=lambda site: order[site.anchor])
    ]
    return records, [site for site in wanted if not left[site]], note


def _checked(module: fx.GraphModule, inputs: Sequence[Any], sites: Sequence[Site]) -> tuple[dict[Site, Checked], str]:
    """The outcome of each site's check, and why some have none."""
    outcomes: dict[Site, Checked] = {}
    note = ""
    try:
        for site, values in captured(module, inputs, sites):
            outcomes[site] = check(site, values)
    except NotCapturedError as error:
        note = f"nothing was rewritten: {error}"
    except Exception as error:  # noqa: BLE001 a graph that cannot be run beforehand is compiled as it is
        note = f"the graph could not be run beforehand: {type(error).__name__}"
    device = _device(module)
    if device.type == "cuda":
        # What the checks held is neither the program's memory nor its peak.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return outcomes, note


def _left(pattern: Pattern, site: Site, options: Options) -> str:
    """Why a site is not even checked; empty where it is to be rewritten."""
    if options.rewrite != "pays":
        return ""
    device = _device_of(site.anchor)
    if device.type == "cpu":
        return "no gain is known on a CPU"
    if kernels.backend(device) != "triton":
        return "Triton does not reach the device"
    return pattern.keeps(site, [hinted(node) for node in site.inputs], options.kind)


def _record(pattern: Pattern, site: Site, left: str, outcome: Checked | None, options: Options) -> SiteRecord:
    file, line, module = place_of(site.anchor)
    record = SiteRecord(pattern.name, file, line, module, left)
    if outcome is None or left:
        return record
    peaks = outcome.peaks_bytes
    return replace(
        record,
        estimated_bytes=pattern.saves(site, [hinted(node) for node in site.inputs], options.kind),
        measured_bytes=None if peaks is None else peaks[0] - peaks[1],
        checked_share=outcome.share,
        # Checks run eagerly, whatever runs the graph.
        estimated_for_check_bytes=pattern.saves(site, list(outcome.sizes), "eager"),
    )


def _handed_on(module: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Compiled:
    if options.inner == "inductor":
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(module, inputs, config_patches=dict(options.handed_on))  # type: ignore[return-value]
    compiled: Compiled = torch._dynamo.lookup_backend(options.inner)(module, inputs)  # type: ignore[arg-type]
    return compiled


def _watched(compiled: Compiled, device: torch.device, number: int, prints: bool) -> Compiled:
    """The compiled graph, whose first calls' peak memory goes into the account."""
    calls = 0

    @functools.wraps(compiled)
    def watched(*inputs: Any) -> Any:
        nonlocal calls
        if calls <= FIRST_STEPS:
            if calls == FIRST_STEPS:
                account.peak_seen(number, torch.cuda.max_memory_allocated(device), prints)
            calls += 1
        return compiled(*inputs)

    return watched


def _device(module: fx.GraphModule) -> torch.device:
    """Where the graph computes: the device of its first value that is not on the CPU."""
    devices = [value.device for node in module.graph.nodes if (value := held(node)) is not None]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _device_of(node: fx.Node) -> torch.device:
    value = held(node)
    return torch.device("cpu") if value is None else value.device
