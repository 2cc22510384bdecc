"""Whether a fused operator does what the nodes did, on the values that reached them in a real call.

Both run forward and backward with the same cotangents, in their own dtype, and are held against the nodes run in
float64 (in float32 where float64 does not fit). The fused operator may err three times as much as the nodes do, plus
what one rounding of the result and sixteen of its float32 sums explain. What is not finite never passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from diagnose.graph.autocasting import autocast_of, differ, run_under
from diagnose.graph.nodes import size_of_now, wanted_gradient
from diagnose.graph.site import Site

ERROR_RATIO = 3.0
"""How much larger the error may be than that of what is replaced: the usual allowance for another order of sums."""

SUM_ROUNDINGS = 16
"""Roundings of float32 that a sum in another order may differ by."""

MOST_ELEMENTS = 1 << 28
"""Elements of the largest intermediate tensor that a check makes on all rows: 2 GiB in float64."""

PART_ELEMENTS = 1 << 25
"""Elements that are compared at once."""

WIDENING = {"float": "double", "half": "double", "bfloat16": "double"}

Call = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Equivalence:
    """The result of an equivalence check."""

    refused: str
    """Why the site stays as it is; empty where the two are equivalent."""
    peaks_bytes: tuple[int, int] | None = None
    """The memory of forward and backward at their peak, as found and fused; None where the device does not count."""


def affordable(site: Site, values: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], float]:
    """The values to check a site on, and their share of the rows.

    The leading rows where all would need too much memory, and the nodes, with the sizes in them, take a part.
    """
    if site.elements > MOST_ELEMENTS:
        part, share = _part(site, values, MOST_ELEMENTS / site.elements)
        if share < 1.0 and _takes(site, part):
            return part, share
    return values, 1.0


def check(site: Site, values: Sequence[torch.Tensor], share: float = 1.0) -> Equivalence:
    """Run both and compare."""
    try:
        return _compare(site, values, share)
    except torch.OutOfMemoryError:
        return Equivalence("its check does not fit into the device's memory")
    except Exception as error:  # noqa: BLE001 whatever a rewritten site raises, the program keeps what it had
        return Equivalence(f"its check failed: {type(error).__name__}: {_first_line(error)}")


def site_function(site: Site, widened: torch.dtype | None = None) -> Call:
    """The nodes of a site as a function of its inputs; with every floating dtype replaced where one is given.

    Each runs under the autocast that it ran under, where these differ; widened, all run under none.
    """
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"input_{place}") for place, node in enumerate(site.inputs)}
    order = {node: place for place, node in enumerate(site.anchor.graph.nodes)}
    apart = widened is None and differ(site.removed)
    for node in sorted(site.removed, key=order.__getitem__):
        copy = graph.node_copy(node, lambda read: copies[read] if read in copies else size_of_now(read))
        if apart and (autocast := autocast_of(node)) is not None:
            run_under(copy, autocast)
        if widened is not None:
            _widen(copy, widened)
        copies[node] = copy
    graph.output(tuple(copies[node] for node in site.outputs))
    # Its `forward`: called as a module, it would write the graph to stderr where a check fails.
    call: Call = fx.GraphModule(torch.nn.Module(), graph).forward
    return call


def fused_function(site: Site) -> Call:
    """Return the function that replaces the nodes, with the same inputs."""

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = site.fused(*inputs, **site.constants)
        return (found,) if isinstance(found, torch.Tensor) else found

    return call


def _compare(site: Site, values: Sequence[torch.Tensor], share: float) -> Equivalence:
    found, found_peak = _measure(site_function(site), site, values)
    ours, our_peak = _measure(fused_function(site), site, values)
    if [(one.dtype, one.shape) for one in found] != [(one.dtype, one.shape) for one in ours]:
        return Equivalence("its results have another dtype or shape")
    wide = torch.float64 if site.elements * share <= MOST_ELEMENTS else torch.float32
    widened = [value.to(wide) if value.is_floating_point() else value for value in values]
    with torch.autocast(values[0].device.type, enabled=False):
        exact = forward_and_backward(site_function(site, wide), site, widened)
    refused = next((reason for trio in zip(found, ours, exact, strict=True) if (reason := _errs(*trio))), "")
    return Equivalence(refused, None if found_peak is None or our_peak is None else (found_peak, our_peak))


def forward_and_backward(call: Call, site: Site, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results, and their vector-Jacobian products with drawn cotangents."""
    training = any(wanted_gradient(node) for node in site.outputs)
    inputs = [
        value.detach().requires_grad_(training and wanted_gradient(node))
        for node, value in zip(site.inputs, values, strict=True)
    ]
    with torch.set_grad_enabled(training):
        results = call(*inputs)
    followed = [result for result in results if result.requires_grad]
    wanted = [value for value in inputs if value.requires_grad]
    if not followed or not wanted:
        return [result.detach() for result in results]
    cotangents = [_random_like(result, seed) for seed, result in enumerate(followed)]
    gradients = torch.autograd.grad(followed, wanted, cotangents, allow_unused=True)
    zeros = (
        torch.zeros_like(value) if given is None else given for value, given in zip(wanted, gradients, strict=True)
    )
    return [*(result.detach() for result in results), *zeros]


def _measure(call: Call, site: Site, values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int | None]:
    device = values[0].device
    if device.type != "cuda":
        return forward_and_backward(call, site, values), None
    # The first pass compiles and tunes kernels, which takes memory too.
    forward_and_backward(call, site, values)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    results = forward_and_backward(call, site, values)
    return results, torch.cuda.max_memory_allocated(device) - before


def _random_like(result: torch.Tensor, seed: int) -> torch.Tensor:
    """Draw normal numbers from a generator of their own; they are equal for results of every dtype."""
    generator = torch.Generator(result.device).manual_seed(seed)
    drawn = torch.randn(result.shape, generator=generator, device=result.device, dtype=torch.float32)
    # A value that all dtypes hold: the cotangent's own rounding is no error of either.
    return drawn.to(torch.bfloat16).to(result.dtype)


def _errs(found: torch.Tensor, ours: torch.Tensor, exact: torch.Tensor) -> str:
    """Why a result is not what it was; empty where it is."""
    if found.numel() == 0:
        return ""
    limit = torch.finfo(found.dtype).eps + SUM_ROUNDINGS * torch.finfo(torch.float32).eps
    if found.dtype == torch.float64:
        limit = SUM_ROUNDINGS * torch.finfo(torch.float64).eps
    squares, worst = _sizes(found, ours, exact)
    means = (squares / found.numel()).sqrt()
    for name, (before, after, size) in (("mean", means.tolist()), ("largest", worst.tolist())):
        if not after <= ERROR_RATIO * before + limit * size or size == float("inf"):
            return f"it errs by {after:.2g} ({name}), the nodes by {before:.2g}, on values of {size:.2g}"
    return ""


def _sizes(found: torch.Tensor, ours: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of squares and the largest of both errors and of the exact values; in parts, for weights are large."""
    squares, worst = (torch.zeros(3, dtype=exact.dtype, device=exact.device) for _ in range(2))
    parts = (torch.split(tensor.reshape(-1), PART_ELEMENTS) for tensor in (found, ours, exact))
    for one, other, right in zip(*parts, strict=True):
        sizes = [(one.to(right.dtype) - right).abs(), (other.to(right.dtype) - right).abs(), right.abs()]
        squares += torch.stack([size.square().sum() for size in sizes])
        worst = torch.maximum(worst, torch.stack([size.max() for size in sizes]))
    return squares, worst


def _part(site: Site, values: Sequence[torch.Tensor], share: float) -> tuple[list[torch.Tensor], float]:
    """The leading rows of what has rows, alike for all of it, and their share; all where they do not divide."""
    leading = [values[place].shape[0] for place in site.rows]
    fewest = min(leading)
    kept = max(1, int(fewest * share))
    if any(length % fewest for length in leading):
        return list(values), 1.0
    part = list(values)
    for place, length in zip(site.rows, leading, strict=True):
        part[place] = values[place][: kept * (length // fewest)]
    return part, kept / fewest


def _takes(site: Site, values: Sequence[torch.Tensor]) -> bool:
    """Whether the nodes, with the sizes that Dynamo wrote into them, run on a part of the rows."""
    fakes = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fakes, torch.no_grad():
            site_function(site)(
                *(torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values)
            )
    except Exception:  # noqa: BLE001 any error means no
        return False
    return True


def _widen(node: fx.Node, wide: torch.dtype) -> None:
    """Let a node compute in a wider dtype where it names a narrower one."""

    def widened(argument: Any) -> Any:
        return wide if isinstance(argument, torch.dtype) and argument.is_floating_point else argument

    node.args = fx.node.map_aggregate(node.args, widened)
    node.kwargs = fx.node.map_aggregate(node.kwargs, widened)
    if node.op == "call_method" and node.target in WIDENING:
        node.target = "double" if wide == torch.float64 else "float"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
