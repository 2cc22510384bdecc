"""Elementwise work that runs as a chain of kernels, and what it computes where that can be recognised.

    chains = pointwise_chains(order, taken)
    chains[0].kind               # "normalisation", "activation", … or "" for a chain of nothing known
    chains[0].needed_ns          # what a fused kernel would take

A chain is a stretch of neighbours in the order of launches that eager operators of PyTorch launched and that are
elementwise, reductions or copies: no product, no kernel that already fuses something, none that other rules explain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.trace.schema import Bool, Int64

LONG = 7
"""The number of large kernels in a row that are a chain worth naming, whatever it computes."""

UNKNOWN_LEFT = 0.4
"""The share of a chain of unknown traffic that is left at least: it may read and write many tensors."""

BACKWARD_PASSES = 1.5
"""A fused backward kernel over the longest kernel of the chain: it reads input and gradient and writes a gradient."""

COMPOSITES = re.compile(
    r"^aten::(rms_norm|layer_norm|native_layer_norm|group_norm|batch_norm|instance_norm|gelu|silu|mish|hardswish|glu"
    r"|softmax|log_softmax|normalize|cosine_similarity|multi_head_attention.*|_transformer_encoder_layer.*|rrelu"
    r"|lstm|gru|lstm_cell|gru_cell|rnn_(tanh|relu)(_cell)?|embedding.*|binary_cross_entropy.*|smooth_l1_loss|huber_loss)$"
)
"""Operators that PyTorch may run as several of its own."""

_PRIMITIVE = re.compile(
    r"abs|add|addcmul|addcdiv|bitwise_.*|cat|clamp(_min|_max)?|copy|cos|div|eq|erf|exp|fill|ge|gt|le|log|log1p|lt"
    r"|masked_fill|max|mean|minimum|maximum|min|mul|ne|neg|pow|reciprocal|relu|rsqrt|rsub|sigmoid|sigmoid_backward|silu"
    r"|silu_backward|sin|softplus|softplus_backward|sqrt|square|std|sub|sum|tanh|tanh_backward|threshold_backward|to"
    r"|var|where|zero|native_dropout|native_dropout_backward|amax|amin"
)
# What a chain computes, by what only it is made of: all of the words, and the one whose count tells how often.
_KINDS: tuple[tuple[str, tuple[frozenset[str], ...], str], ...] = (
    ("normalisation", (frozenset({"rsqrt", "sqrt", "std"}), frozenset({"mean", "var", "std"})), "rsqrt sqrt std"),
    ("activation", (frozenset({"tanh"}), frozenset({"pow", "mul"})), "tanh"),
    ("activation", (frozenset({"erf"}), frozenset({"mul"})), "erf"),
    ("activation", (frozenset({"sigmoid"}), frozenset({"mul"})), "sigmoid"),
    ("softmax", (frozenset({"exp"}), frozenset({"sum"}), frozenset({"div"})), "exp"),
)
_FEWEST = {"normalisation": 3, "activation": 4, "softmax": 3}
"""Large kernels that make up one of them, written out."""
_RESIDUAL = frozenset(
    {"add", "native_dropout", "nativedropout", "cat", "fill", "view", "unsafeview", "embedding", "zero"}
)
_MOVING = frozenset({"copy", "fill", "zero", "to", "tocopy", "clone", "cat"})
_IN_PLACE = re.compile(r"^aten::(?!copy_|fill_|zero_).*[^_]_$")
_ROTARY = (frozenset({"neg"}), frozenset({"cat", "slice", "split", "slice_backward"}))
_NODE_WORD = re.compile(r"evaluate_function: (?:torch::autograd::)?([A-Za-z]+?)(?:Scalar|Tensor)?Backward\d*$")


@dataclass(frozen=True)
class Chain:
    """One chain; places in the `LaunchOrder`."""

    first: int
    last: int
    kind: str
    """What it computes; empty where it is long and nothing known."""
    backward: bool
    kernels: int
    length_ns: int
    needed_ns: int


def pointwise_chains(order: LaunchOrder, taken: Bool) -> tuple[Chain, ...]:
    """Chains of what is not `taken`: those whose kind is known, and long ones."""
    mine = order.eager & order.says(_PRIMITIVE) & ~order.product & ~taken
    words = _words(order)
    found = []
    for begin, end in order.runs(mine):
        # The forward and the backward part of a stretch that turns
        turns = np.flatnonzero(np.diff(order.backward[begin:end].astype(np.int8)) != 0) + begin + 1
        borders = [begin, *turns.tolist(), end]
        for start, stop in pairwise(borders):
            chain = _chain(order, words, start, stop)
            if chain is not None:
                found.append(chain)
    return tuple(found)


def _chain(order: LaunchOrder, words: tuple[list[str], Int64], begin: int, end: int) -> Chain | None:
    texts, owner = words
    begin, end = _without_residual(texts, begin, end)
    length = order.length_ns[begin:end]
    if end - begin < 2:
        return None
    said = set(texts[begin:end])
    longest = int(length.max())
    large = int((2 * length >= longest).sum())
    kind, times = _kind(texts, owner, begin, end, large)
    rotary = all(said & parts for parts in _ROTARY)
    if not kind and (rotary or _computing(texts, order, begin, end) < LONG or _updates(order, begin, end)):
        return None
    behind = bool(order.backward[begin])
    total = int(length.sum())
    needed = longest * (BACKWARD_PASSES if behind else 1.0) * times
    needed = needed if kind else max(needed, UNKNOWN_LEFT * total)
    return Chain(begin, end - 1, kind, behind, end - begin, total, min(int(needed), total))


def _kind(texts: list[str], owner: Int64, begin: int, end: int, large: int) -> tuple[str, int]:
    """Return what a chain computes and how many times; empty for nothing known."""
    said = set(texts[begin:end])
    for kind, parts, counted in _KINDS:
        if not all(said & part for part in parts):
            continue
        anchors = counted.split()
        times = len({int(owner[at]) for at in range(begin, end) if texts[at] in anchors})
        if large >= _FEWEST[kind] * max(times, 1):
            return kind, max(times, 1)
    return "", 1


def _without_residual(texts: list[str], begin: int, end: int) -> tuple[int, int]:
    """A chain without the residual sum, the dropout or the joining of gradients at its ends."""
    while begin < end - 1 and texts[begin] in _RESIDUAL:
        begin += 1
    while end > begin + 1 and texts[end - 1] in _RESIDUAL:
        end -= 1
    return begin, end


def _computing(texts: list[str], order: LaunchOrder, begin: int, end: int) -> int:
    """Return how many large kernels compute something: copies one after the other (buckets, batches) are no chain."""
    length = order.length_ns[begin:end]
    large = (2 * length >= length.max()).tolist()
    return sum(big and text not in _MOVING for big, text in zip(large, texts[begin:end], strict=True))


def _updates(order: LaunchOrder, begin: int, end: int) -> bool:
    """Whether most of it changes tensors in place: an update of parameters or of their averages, not a layer."""
    names = order.trace.ops.name[order.op[begin:end][order.op[begin:end] >= 0]]
    in_place = sum(_IN_PLACE.search(order.trace.names[name]) is not None for name in names.tolist())
    return 2 * in_place > end - begin


def _words(order: LaunchOrder) -> tuple[list[str], Int64]:
    """Per place what it computes, a backward one by the node that it differentiates; and which call or node that is."""
    trace = order.trace
    node_words = [(match[1].lower() if (match := _NODE_WORD.search(name)) else "") for name in (*trace.names, "")]
    plain = order.words
    nodes = np.where(order.node >= 0, trace.ops.name[order.node], -1) if len(trace.ops) else order.node
    texts = [
        node_words[node] if node >= 0 and node_words[node] else plain[word]
        for node, word in zip(nodes.tolist(), order.word_index.tolist(), strict=True)
    ]
    return texts, np.where(order.node >= 0, order.node, order.op)
