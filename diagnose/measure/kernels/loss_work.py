"""The work of the loss: all that runs between the last product of a forward pass and the first of its backward pass.

    losses = loss_work(order)
    losses.places            # of that work, what eager operators launched
    losses.by_hand           # whether the loss is written out instead of called (`cross_entropy`)

That stretch holds the loss whatever it is called, and of a model with a large vocabulary little else: the output layer
is the last product, and its gradient the first. A loss that runs in generated or hand-made kernels is not looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.views.shapes import shapes_of
from diagnose.trace.schema import Bool, Int64

_ANCHOR = re.compile(r"_log_softmax(_backward_data)?|nll_loss.*|cross_entropy.*|_softmax(_backward_data)?")
_CALLED = re.compile(r"aten::(cross_entropy_loss|nll_loss|nll_loss2d)|NllLoss|nll_loss")
_OWN = re.compile(
    r"aten::(cross_entropy_loss|log_softmax|_log_softmax|nll_loss|to$|_to_copy$)|NllLoss|LogSoftmaxBackward|ToCopyBackward"
)
_COPY = re.compile(r"copy|_to_copy")
_FIRST_PASS = re.compile(r"_log_softmax|_softmax")


@dataclass(frozen=True, eq=False)
class LossWork:
    """Places of the program order, in order."""

    places: Int64
    own: Bool
    """Per place, PyTorch's own cross-entropy with its change of format. The others are what a program added to it."""
    by_hand: bool
    """Whether no operator computes the loss from the log-probabilities: the program does."""
    softmax_ns: int
    """Time of the forward (log-)softmax over the logits, all together; 0 where there is none."""
    cast: bool
    """Whether that softmax runs over a copy that was made for it."""
    logits: tuple[int, ...] | None
    """The shape of the largest logits, where recorded."""

    def __len__(self) -> int:
        return len(self.places)


def loss_work(order: LaunchOrder) -> LossWork:
    """The losses of the counted steps, those of several microbatches together."""
    anchor, backward = order.says(_ANCHOR), order.backward
    chosen = np.zeros(len(order), np.bool_)
    for begin, end in order.runs(~order.product):
        turns = backward[begin:end].any() and not backward[begin]
        chosen[begin:end] = turns and anchor[begin:end].any()
    places = np.flatnonzero(chosen & order.eager)
    called = order.within(_CALLED) | order.says(re.compile(r"nll_loss.*"))
    softmax = places[order.says(_FIRST_PASS)[places] & ~backward[places]]
    return LossWork(
        places=places,
        own=order.within(_OWN)[places] | (order.op[places] < 0),
        by_hand=bool(len(places)) and not bool(called[places].any()),
        softmax_ns=int(order.length_ns[softmax].sum()),
        cast=_has_copy(order, places, softmax),
        logits=_largest_logits(order, softmax),
    )


def _has_copy(order: LaunchOrder, places: Int64, softmax: Int64) -> bool:
    """Whether a copy that takes a quarter as long as the softmax, or longer, comes before it.

    From 16 bits it moves 6 bytes a number, the softmax 8 where it keeps a row on the chip, and 12 to 16 where it reads
    long rows again.
    """
    if not len(softmax):
        return False
    copies = places[order.says(_COPY)[places] & ~order.backward[places]]
    large = copies[4 * order.length_ns[copies] >= order.length_ns[softmax].max()]
    return bool((large < softmax.max()).any())


def _largest_logits(order: LaunchOrder, softmax: Int64) -> tuple[int, ...] | None:
    shapes = [shapes_of(order.trace, int(op)) for op in np.unique(order.op[softmax]).tolist()]
    logits = [shape[0] for shape in shapes if shape and shape[0]]
    return max(logits, key=lambda shape: int(np.prod(shape)), default=None)
