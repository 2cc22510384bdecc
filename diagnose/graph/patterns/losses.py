"""Cross entropy as programs write it: in one call, or as the likelihood of a log-softmax."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from diagnose.graph.nodes import calls, equal_sizes, fake_value, only_read_by, operand, shape


@dataclass(frozen=True)
class LossCall:
    """One loss: its nodes (the one that gives the value first), what it reads, and its constants."""

    nodes: tuple[fx.Node, ...]
    logits: fx.Node
    target: fx.Node
    terms: Mapping[str, Any]
    classes: Any
    """How many there are; may be symbolic."""


def loss_call(node: fx.Node) -> LossCall | None:
    """The loss that a node gives, where it is one of class indices without class weights."""
    if calls(node, "cross_entropy"):
        arguments = _arguments(node, smoothing_place=7)
        return None if arguments is None else _of(node, (node,), operand(node, 0, "input"), arguments)
    if not calls(node, "nll_loss"):
        return None
    inside = operand(node, 0, "input")
    if not calls(inside, "log_softmax") or not only_read_by(inside, (node,)):
        return None
    arguments = _arguments(node, smoothing_place=None)
    rank = len(shape(inside))
    along = operand(inside, 1, "dim")
    if arguments is None or not isinstance(along, int) or rank == 0 or along % rank != (0 if rank == 1 else 1):
        return None
    if operand(inside, 3, "dtype") is not None or (inside.op == "call_method" and operand(inside, 2, "dtype")):
        return None
    return _of(node, (node, inside), inside.args[0], arguments)


def classes_moved(node: fx.Node) -> bool:
    """Whether a node moves the last dimension to the second place and keeps the order of the others."""
    rank = len(shape(node))
    if rank < 3:
        return False
    if calls(node, "mT"):
        return rank == 3
    places = node.args[1:] if len(node.args) != 2 else node.args[1]
    if not isinstance(places, tuple | list):
        return False
    there = [place % rank for place in places if isinstance(place, int)]
    if calls(node, "transpose"):
        return rank == 3 and sorted(there) == [1, 2]
    return calls(node, "permute") and there == [0, rank - 1, *range(1, rank - 1)]


def _of(node: fx.Node, nodes: tuple[fx.Node, ...], logits: object, terms: Mapping[str, Any]) -> LossCall | None:
    target = operand(node, 1, "target")
    sizes, labels = shape(logits), fake_value(target)
    if not isinstance(logits, fx.Node) or labels is None or labels.is_floating_point() or len(sizes) < 2:
        return None
    # Classes are second; a target for everything else.
    if not equal_sizes((sizes[0], *sizes[2:]), labels.shape):
        return None
    return LossCall(nodes, logits, target, terms, sizes[1])


def _arguments(node: fx.Node, smoothing_place: int | None) -> Mapping[str, Any] | None:
    """The constants of a loss; None where it has class weights, retired arguments or what is not constant."""
    smoothing = 0.0 if smoothing_place is None else operand(node, smoothing_place, "label_smoothing", 0.0)
    terms = {
        "ignore_index": operand(node, 4, "ignore_index", -100),
        "label_smoothing": smoothing,
        "reduction": operand(node, 6, "reduction", "mean"),
    }
    if operand(node, 2, "weight") is not None or operand(node, 3, "size_average") is not None:
        return None
    if operand(node, 5, "reduce") is not None or any(isinstance(term, fx.Node) for term in terms.values()):
        return None
    return terms
