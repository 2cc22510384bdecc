"""How many bytes operators must move that do little arithmetic: elementwise, normalisation, softmax, reduction.

Counted is what a perfect implementation moves: each input once, each output once, in their own formats, a broadcast
input as small as it is. Arithmetic is nominal, for these operators wait for memory: one operation for each element of
an elementwise operator and of a reduction; 5 for softmax (subtract, exponentiate, add, divide, and its maximum); 5 for
a normalisation and twice that for its backward pass. What is written beside (means, masks) is left out where it is a
small part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from diagnose.measure.roofline.matmul_costs import Model, Work
from diagnose.measure.views.operands import NotRecorded, Operands
from diagnose.measure.views.shapes import Shape

_SOFTMAX_FLOPS = 5  # per element: see the module's docstring
_NORM_FLOPS = 5  # per element: see the module's docstring


def _elements(given: Operands, place: int) -> int:
    return prod(given.shape(place))


def _broadcast(shapes: list[Shape]) -> Shape:
    sizes = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, size in enumerate(reversed(shape), start=1):
            if size != 1 and sizes[-axis] not in (1, size):
                raise NotRecorded
            sizes[-axis] = size if size != 1 else sizes[-axis]
    return tuple(sizes)


def _elementwise(given: Operands) -> Work:
    """Reads all tensors, writes one that they broadcast to, in the widest of their formats."""
    # A tensor without dimensions and a number are recorded alike; neither moves anything worth counting.
    places = [place for place in given.tensors if given.shape(place)]
    if not places:
        raise NotRecorded
    written = prod(_broadcast([given.shape(place) for place in places]))
    width = max(given.item_bytes(place) for place in places)
    return Work(written, given.bytes(*places) + written * width)


def _comparison(given: Operands) -> Work:
    """The cost of an elementwise comparison, which writes truth values."""
    places = [place for place in given.tensors if given.shape(place)]
    if not places:
        raise NotRecorded
    written = prod(_broadcast([given.shape(place) for place in places]))
    return Work(written, given.bytes(*places) + written)


def _in_place(given: Operands) -> Work:
    """Reads all tensors, writes the first."""
    places = [place for place in given.tensors if given.shape(place)]
    if not places or places[0] != 0:
        raise NotRecorded
    return Work(_elements(given, 0), given.bytes(*places) + given.bytes(0))


def _copy(given: Operands) -> Work:
    read = _elements(given, 1) if given.shape(1) else 1
    return Work(0, _elements(given, 0) * given.item_bytes(0) + read * given.item_bytes(1))


def _fill(given: Operands) -> Work:
    return Work(0, given.bytes(0))


def _dropout(given: Operands) -> Work:
    count = _elements(given, 0)
    return Work(count, 2 * given.bytes(0) + count)  # and a mask of one byte each


def _reduction(given: Operands) -> Work:
    """Reads its input; what it writes is smaller, and its size not recorded."""
    if not given.shape(0):
        raise NotRecorded
    return Work(_elements(given, 0), given.bytes(0))


def _softmax(given: Operands) -> Work:
    return Work(_SOFTMAX_FLOPS * _elements(given, 0), 2 * given.bytes(0))


def _softmax_backward(given: Operands) -> Work:
    return Work(_SOFTMAX_FLOPS * _elements(given, 0), given.bytes(0, 1) + given.bytes(0))


def _norm(given: Operands) -> Work:
    return Work(_NORM_FLOPS * _elements(given, 0), 2 * given.bytes(0))


def _norm_backward(given: Operands, gradient: int = 0, image: int = 1) -> Work:
    """Reads the gradient of the output and the input, writes the gradient of the input."""
    if given.shape(gradient) != given.shape(image):
        raise NotRecorded
    moved = given.bytes(gradient, image) + given.bytes(image)
    return Work(2 * _NORM_FLOPS * _elements(given, image), moved)


def _through(given: Operands) -> Work:
    """Reads its input, writes as much."""
    return Work(_elements(given, 0), 2 * given.bytes(0))


def _sorting(given: Operands) -> Work:
    """Return the traffic of a radix sort: 4 passes for 4 bytes, each of which reads and writes keys and, as long as
    them at least, places."""
    return Work(_elements(given, 0), 4 * given.item_bytes(0) * given.bytes(0))


def _added_at(source: int) -> Model:
    """Reads what is added, and reads and writes the places that it is added to."""

    def model(given: Operands) -> Work:
        if not given.shape(source):
            raise NotRecorded  # one number, added to places that nobody counted
        return Work(_elements(given, source), 3 * given.bytes(source))

    return model


def _gathered(given: Operands) -> Work:
    return Work(0, given.bytes(2) + 2 * _elements(given, 2) * given.item_bytes(0))


def _pool(given: Operands) -> Work:
    """Reads its input; what it writes is as much smaller as its stride says, with the places of 8 bytes, left out."""
    return _reduction(given)


def _pool_backward(given: Operands) -> Work:
    """Reads the gradient of the output with the places that it goes to (8 bytes each), writes that of the input."""
    return Work(_elements(given, 1), given.bytes(0, 1) + 8 * _elements(given, 0))


def _looked_up(given: Operands) -> Work:
    """Reads a row of the table for each index, and writes it."""
    rows, indices = given.shape(0, 2), given.shape(1)
    row = rows[1] * given.item_bytes(0)
    return Work(0, prod(indices) * (2 * row + given.item_bytes(1)))


def _written_out(given: Operands) -> Work:
    """A kernel of inductor: its operands are its buffers, each read or written once."""
    places = given.tensors
    if not places:
        raise NotRecorded
    return Work(max(_elements(given, place) for place in places), given.bytes(*places))


_ELEMENTWISE = (
    "add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp", "neg", "abs", "exp", "log", "sqrt", "rsqrt",
    "pow", "reciprocal", "tanh", "sigmoid", "silu", "gelu", "relu", "leaky_relu", "elu", "hardtanh", "clamp",
    "clamp_min", "clamp_max", "threshold", "cos", "sin", "sign", "square", "where", "masked_fill", "maximum",
    "minimum", "tril", "triu", "floor", "ceil", "round", "erf", "softplus", "hardswish", "mish", "tanh_backward",
    "sigmoid_backward", "silu_backward", "gelu_backward", "threshold_backward", "leaky_relu_backward",
    "elu_backward", "hardtanh_backward", "native_dropout_backward", "softplus_backward", "hardswish_backward",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isfinite")
_REDUCTIONS = (
    "sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "std", "var", "var_mean", "norm",
    "linalg_vector_norm", "logsumexp", "all", "any",
)  # fmt: skip
_NORMS = (
    "native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm",
    "miopen_batch_norm", "native_group_norm", "_fused_rms_norm",
)  # fmt: skip
_NORMS_BACKWARD = (
    "native_layer_norm_backward", "native_batch_norm_backward", "batch_norm_backward", "native_group_norm_backward",
    "_fused_rms_norm_backward",
)  # fmt: skip

MODELS: Mapping[str, Model] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **{f"{name}_": _in_place for name in _ELEMENTWISE},
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("fill_", "zero_", "normal_", "uniform_", "random_", "exponential_"), _fill),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "roll", "flip"), _through),
    **dict.fromkeys(("sort", "argsort"), _sorting),
    "topk": _reduction,
    "gather": _gathered,
    **dict.fromkeys(("scatter_add_", "index_add_"), _added_at(3)),
    **dict.fromkeys(("_index_put_impl_", "index_put_"), _added_at(2)),
    "embedding_dense_backward": _added_at(0),
    "embedding": _looked_up,
    "copy_": _copy,
    "native_dropout": _dropout,
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"), _pool),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _pool),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"), _pool_backward),
    **dict.fromkeys(_NORMS, _norm),
    **dict.fromkeys(_NORMS_BACKWARD, _norm_backward),
    # The input comes first.
    "cudnn_batch_norm_backward": lambda given: _norm_backward(given, 1, 0),
    "miopen_batch_norm_backward": lambda given: _norm_backward(given, 1, 0),
}
"""Cost models by the operator's name without `aten::`."""

_INDUCTOR = re.compile(r"^triton_(poi|per|red)_")
_PARTLY_READ = re.compile(r"embedding|index|gather|scatter|slice|select|split|unbind|nll_loss|cat_|stack|roll|unfold")


def inductor_model(name: str) -> Model | None:
    """The model of a kernel that inductor wrote; None where it may use only parts of its buffers."""
    if not _INDUCTOR.match(name) or _PARTLY_READ.search(name):
        return None
    return _written_out
