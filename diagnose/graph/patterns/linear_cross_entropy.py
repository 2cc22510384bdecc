"""Cross entropy of a linear layer's output whose logits nothing else reads.

Between the two may stand what keeps rows as they are: views, casts to a wider dtype, slices of the leading dimensions
(the shift by one of language models), and the transposition that puts classes second. Class weights, class
probabilities, and logits that are scaled, capped, masked or returned do not match.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.nodes import calls, dtype, equal_sizes, hinted_value, is_cast, only_read_by, operand, shape
from diagnose.graph.patterns.losses import LossCall, classes_moved, loss_call
from diagnose.graph.site import Example, Inner, Pattern, Site, classes, floats
from diagnose.kernels.losses.linear_loss import held_bytes

LEAST_SAVED_BYTES = 256 << 20
"""Chunks of logits make more and smaller products: not for less memory than this."""


def fused(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kept: tuple[Any, ...],
    logits_dtype: torch.dtype,
    loss_dtype: torch.dtype,
    ignore_index: int,
    label_smoothing: float,
    reduction: Any,
) -> torch.Tensor:
    """The loss of the rows that `kept` leaves of the features, with the dtypes that the logits and the loss had."""
    rows = hidden[kept] if kept else hidden
    loss = kernels.linear_cross_entropy(
        rows.reshape(-1, hidden.shape[-1]).to(logits_dtype),
        weight.to(logits_dtype),
        target.reshape(-1),
        None if bias is None else bias.to(logits_dtype),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return (loss.reshape(target.shape) if reduction == "none" else loss).to(loss_dtype)


def find(graph: fx.Graph) -> Iterator[Site]:
    """The losses whose logits come from a linear layer, through rows that stay rows, and go nowhere else."""
    for node in graph.nodes:
        call = loss_call(node)
        if call is not None and (site := _site(call)) is not None:
            yield site


def _site(call: LossCall) -> Site | None:
    removed, reader = list(call.nodes), call.nodes[-1]
    kept: tuple[Any, ...] = ()
    value: Any = call.logits
    while isinstance(value, fx.Node) and only_read_by(value, (reader,)):
        product = _product(value)
        if product is not None:
            hidden, weight, bias, extra = product
            return _described(call, value, (hidden, weight, bias), tuple(kept), [*removed, value, *extra])
        if not (is_cast(value) or _keeps_rows(value, call.classes)):
            part = _slices(value)
            if part is None or kept:
                return None
            kept = part
        elif kept and not _keeps_places(value):
            return None
        removed.append(value)
        reader, value = value, value.args[0]
    return None


def _described(
    call: LossCall, logits: fx.Node, layer: tuple[fx.Node, fx.Node, Any], kept: tuple[Any, ...], nodes: list[fx.Node]
) -> Site | None:
    hidden, weight, bias = layer
    found, loss = dtype(logits), dtype(call.nodes[0])
    if (
        found is None
        or loss is None
        or not equal_sizes(shape(weight)[:1], (call.classes,))
        or not isinstance(call.target, fx.Node)
    ):
        return None
    inputs = (hidden, weight, call.target) + ((bias,) if isinstance(bias, fx.Node) else ())
    order = {node: place for place, node in enumerate(logits.graph.nodes)}
    return Site(
        PATTERN.name,
        removed=tuple(sorted(nodes, key=order.__getitem__)),
        inputs=inputs,
        outputs=(call.nodes[0],),
        fused=fused,
        constants={"kept": kept, "logits_dtype": found, "loss_dtype": loss, **call.terms},
        rows=(0, 2),
        elements=hinted_value(logits).numel(),
    )


def _product(node: fx.Node) -> tuple[fx.Node, fx.Node, Any, tuple[fx.Node, ...]] | None:
    """Features, weight and bias of a linear layer, and the transposition of its weight where that is written."""
    if calls(node, "linear"):
        return node.args[0], operand(node, 1, "weight"), operand(node, 2, "bias"), ()  # type: ignore[return-value]
    if not calls(node, "matmul", "mm") or len(node.args) != 2:
        return None
    features, turned = node.args
    if not isinstance(features, fx.Node) or not isinstance(turned, fx.Node) or not only_read_by(turned, (node,)):
        return None
    if not calls(turned, "t", "transpose", "numpy_T", "T", "mT", "getattr") or len(shape(turned)) != 2:
        return None
    weight = turned.args[0]
    return (features, weight, None, (turned,)) if isinstance(weight, fx.Node) and len(shape(weight)) == 2 else None


def _keeps_rows(node: fx.Node, count: Any) -> bool:
    """Whether a node only lays rows of `count` classes out in another way."""
    if calls(node, "transpose", "permute", "mT"):
        return classes_moved(node)
    if calls(node, "view", "reshape", "flatten", "contiguous", "unflatten"):
        return equal_sizes(shape(node)[-1:], (count,)) and equal_sizes(shape(node.args[0])[-1:], (count,))
    return False


def _keeps_places(node: fx.Node) -> bool:
    """Whether a slice of the node's value is one of what it reads, so that it can be taken of the features."""
    return not calls(node, "transpose", "permute", "mT") and equal_sizes(shape(node), shape(node.args[0]))


def _slices(node: fx.Node) -> tuple[Any, ...] | None:
    """The slices of the leading dimensions that a node takes, where they are constants."""
    if not calls(node, "getitem") or not isinstance(node.args[1], tuple):
        return None
    taken = node.args[1]
    if not all(part is Ellipsis or (isinstance(part, slice) and _constant(part)) for part in taken):
        return None
    if not equal_sizes(shape(node)[-1:], shape(node.args[0])[-1:]):
        return None
    # The last part stands for the classes, which all stay: as it does for the features.
    whole = len(taken) < len(shape(node.args[0])) or Ellipsis in taken or taken[-1] == slice(None)
    return taken if whole else None


def _constant(part: slice) -> bool:
    return all(bound is None or isinstance(bound, int) for bound in (part.start, part.stop, part.step))


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """All logits, as often as they exist at once, less what the operator holds in their place."""
    hidden, weight, *_ = inputs
    rows = hidden.numel() // max(1, hidden.shape[-1])
    narrow = site.constants["logits_dtype"].itemsize
    wide = max(narrow, site.constants["loss_dtype"].itemsize)
    # Eager code ends with log-probabilities and two gradients; Inductor keeps the logits and writes their gradient.
    found = rows * weight.shape[0] * (3 * wide if inner == "eager" else 2 * narrow)
    saved: int = found - held_bytes(rows, weight)
    return saved


def keeps(site: Site, inputs: list[torch.Tensor], inner: Inner) -> str:
    """Memory decides: with or without a compiler, all logits exist at once where they are not made in chunks."""
    saved_bytes = saves(site, inputs, inner)
    if saved_bytes >= LEAST_SAVED_BYTES:
        return ""
    return f"chunks of logits would save {max(0, saved_bytes) >> 20} MiB: too little to pay for smaller products"


def _plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight), target)


def _as_nanogpt(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = functional.linear(hidden, weight)
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), ignore_index=3)


def _as_hugging_face(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = functional.linear(hidden, weight).float()
    logits, target = logits[..., :-1, :].contiguous(), target[..., 1:].contiguous()
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), reduction="sum")


def _classes_second(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    logits = functional.linear(hidden, weight, bias)
    return functional.cross_entropy(logits.transpose(1, 2), target, label_smoothing=0.1)


def _tied(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy((hidden @ weight.t()).flatten(0, 1), target.flatten(), reduction="none").mean()


def _two_steps(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = functional.linear(hidden, weight).flatten(0, 1)
    return functional.nll_loss(functional.log_softmax(logits, dim=-1), target.flatten())


def _logits_returned(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = functional.linear(hidden, weight)
    return logits, functional.cross_entropy(logits, target)


def _accuracy(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = functional.linear(hidden, weight)
    return functional.cross_entropy(logits, target), (logits.argmax(-1) == target).float().mean()


def _capped(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(30.0 * torch.tanh(functional.linear(hidden, weight) / 30.0), target)


def _weighted(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight), target, weight=hidden.new_ones(11))


def _probabilities(hidden: torch.Tensor, weight: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight), given.softmax(-1))


def _some_classes(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight)[..., :7], target.clamp(max=6))


def _slices_of_a_view(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = functional.linear(hidden, weight).view(1, 6, 11)[:, :-1]
    return functional.cross_entropy(logits.reshape(-1, 11), target[1:])


def _rows_as_classes(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight).reshape(11, 6), target)


_FLAT = (floats(6, 8), floats(11, 8), classes(11, 6))
_ROWS = (floats(2, 5, 8), floats(11, 8), classes(11, 2, 5))

PATTERN = Pattern(
    "linear-cross-entropy",
    find,
    saves,
    keeps,
    trades="time for memory",
    matches=(
        Example(_plain, _FLAT),
        Example(_as_nanogpt, _ROWS),
        Example(_as_hugging_face, _ROWS),
        Example(_classes_second, (floats(2, 5, 8), floats(11, 8), floats(11), classes(11, 2, 5))),
        Example(_tied, _ROWS),
        Example(_two_steps, _ROWS),
    ),
    leaves=(
        Example(_logits_returned, _FLAT),
        Example(_accuracy, _FLAT),
        Example(_capped, _FLAT),
        Example(_weighted, _FLAT),
        Example(_probabilities, (floats(6, 8), floats(11, 8), floats(6, 11))),
        Example(_some_classes, _FLAT),
        Example(_slices_of_a_view, _FLAT),
        Example(_rows_as_classes, (floats(6, 8), floats(11, 8), classes(6, 11))),
    ),
)
