"""Device work that computes nothing: it writes a convolution's tensor again in another memory format.

    layout_conversions(trace, tree, launches, classes)      # a mask over trace.device

Two kinds. Kernels of cuDNN and MIOpen that are named for it, which a library launches before and after a kernel that
wants channels last. And copies by `aten::contiguous`: inside a convolution, or of an image-like tensor (four or five
dimensions) right before or after one, as where a program changes the format by hand.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.measure.views.shapes import parsed_shapes
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64

# cuDNN: also what it folds images into (`nchwToFoldedNhwc`). Padding and casting kernels are needed in either format.
CONVERSIONS = re.compile(
    r"nchwTo\w*Nhwc|nhwcToNchw|FoldedNhwcToNchw|tensorTransformGeneric"
    r"|batched_transpose_\d+x\d+|transpose_(NCHW2CNHW|CNHW2NCHW|NHWC|NCHW)",
    re.IGNORECASE,
)
CONVOLUTION = re.compile(r"^aten::(_?convolution|cudnn_convolution|miopen_|convolution_backward|slow_conv|conv_depth)")
_CONTIGUOUS = re.compile(r"^aten::contiguous$")
_CLIMBED = 8  # copy_ < clone < contiguous < layer_norm, and somewhat more
_IMAGES = (4, 5)


def layout_conversions(trace: Trace, tree: OpTree, launches: Launches, classes: np.typing.NDArray[np.uint8]) -> Bool:
    """Return which rows of device work only change a memory format. Operators are needed for all but the named
    kernels."""
    by_name = named(trace.names, trace.device.name, CONVERSIONS)
    if not len(trace.ops) or not len(trace.device):
        return by_name
    asked = named(trace.names, trace.ops.name, _CONTIGUOUS)
    convolving = named(trace.names, trace.ops.name, CONVOLUTION)
    around_copy = _around(tree, tree.of_work, asked)
    copies = (around_copy != MISSING) & (classes != KernelClass.COLLECTIVE)
    inside = _around(tree, tree.of_work, convolving) != MISSING
    if not copies.any():
        return by_name
    beside = copies & ~inside & _is_image(trace, around_copy)
    beside &= _next_to((classes == KernelClass.CONVOLUTION) | inside, launches, trace)
    return np.asarray(by_name | (copies & inside) | beside, np.bool_)


def _around(tree: OpTree, ops: Int64, wanted: Bool) -> Int64:
    """Per operator of `ops` the nearest of the wanted ones that it is or lies in; -1 for none."""
    found = np.full(len(ops), MISSING, np.int64)
    at = ops
    for _ in range(_CLIMBED):
        hit = (at != MISSING) & (found == MISSING) & wanted[at]
        found[hit] = at[hit]
        at = np.where(at == MISSING, MISSING, tree.nesting.parent[at])
    return found


def _is_image(trace: Trace, ops: Int64) -> Bool:
    """Whether the first argument of an operator has as many dimensions as an image or a film; unknown is not."""
    known = ops != MISSING
    texts, place = np.unique(np.where(known, trace.ops.shapes[ops], MISSING), return_inverse=True)
    images = np.array([text >= 0 and _is_image_text(trace.texts[text]) for text in texts.tolist()], np.bool_)
    return np.asarray(images[place], np.bool_)


def _is_image_text(text: str) -> bool:
    shapes = parsed_shapes(text) or (None,)
    return shapes[0] is not None and len(shapes[0]) in _IMAGES


def _next_to(convolution: Bool, launches: Launches, trace: Trace) -> Bool:
    """Whether a row was launched directly before or after a convolution, on the same thread."""
    thread = (
        np.where(launches.linked, trace.calls.thread[launches.call], MISSING) if len(trace.calls) else launches.call
    )
    order = np.lexsort((launches.start_ns, thread))
    flags, threads = convolution[order], thread[order]
    same = threads[1:] == threads[:-1]
    beside = np.zeros(len(order), np.bool_)
    beside[1:] |= flags[:-1] & same
    beside[:-1] |= flags[1:] & same
    result = np.empty(len(order), np.bool_)
    result[order] = beside
    return result
