"""How much arithmetic matrix products and convolutions are, and how many bytes they must move.

A product of (m, k) and (k, n) is 2·m·n·k floating-point operations; it reads both and writes m·n. A convolution is 2 ×
elements of the weight × batch × places of the output (of the input, where it is transposed); its backward pass is as
much for each of the two gradients. As `torch.utils.flop_counter` counts; a bias is left out of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from diagnose.measure.views.operands import NotRecorded, Operands
from diagnose.measure.views.shapes import Shape

UNKNOWN = -1  # stands for a missing value


@dataclass(frozen=True, slots=True)
class Work:
    """The arithmetic and bytes of an operator, independent of its implementation; -1 is unknown."""

    flops: int = UNKNOWN
    """Floating-point operations, a multiplication and an addition as two."""
    bytes: int = UNKNOWN
    """Read and written at least: every input once, every output once, nothing kept in a cache from before."""
    format: str | None = None
    """The format of the numbers that are multiplied, as `kernels.MatmulFormat` names it; None where nothing is."""
    recomputed: int = 0
    """How many of the operations repeat what the forward pass had computed."""


Model = Callable[[Operands], Work]


def _product(batch: int, rows: int, inner: int, columns: int, moved: int, form: str | None) -> Work:
    return Work(2 * batch * rows * inner * columns, moved, form)


def _mm(given: Operands, left: int = 0) -> Work:
    (rows, inner), (same, columns) = given.shape(left, 2), given.shape(left + 1, 2)
    if inner != same:
        raise NotRecorded
    added = given.bytes(0) if left else 0
    written = rows * columns * _written_bytes(given, left)
    return _product(1, rows, inner, columns, given.bytes(left, left + 1) + added + written, given.format(left))


def _bmm(given: Operands, left: int = 0) -> Work:
    (batch, rows, inner), (_, same, columns) = given.shape(left, 3), given.shape(left + 1, 3)
    if inner != same:
        raise NotRecorded
    added = given.bytes(0) if left else 0
    written = batch * rows * columns * _written_bytes(given, left)
    return _product(batch, rows, inner, columns, given.bytes(left, left + 1) + added + written, given.format(left))


def _written_bytes(given: Operands, left: int) -> int:
    # Products of numbers of 8 bits are written with 16 or more.
    return max(given.item_bytes(left), 2)


def _mv(given: Operands, left: int = 0) -> Work:
    (rows, inner), (same,) = given.shape(left, 2), given.shape(left + 1, 1)
    if inner != same:
        raise NotRecorded
    moved = given.bytes(left, left + 1) + rows * given.item_bytes(left)
    return _product(1, rows, inner, 1, moved, given.format(left))


def _dot(given: Operands) -> Work:
    (count,), _ = given.shape(0, 1), given.shape(1, 1)
    return _product(1, 1, count, 1, given.bytes(0, 1), given.format(0))


def _linear(given: Operands) -> Work:
    *rows, inner = given.shape(0)
    columns, same = given.shape(1, 2)
    if inner != same:
        raise NotRecorded
    written = prod(rows) * columns * given.item_bytes(0)
    return _product(1, prod(rows), inner, columns, given.bytes(0, 1) + written, given.format(0))


@dataclass(frozen=True)
class _Places:
    """Where a convolution's operator has its numbers among its arguments."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None = None
    output_padding: int | None = None


def _convolution(places: _Places, *, is_transposed: bool = False) -> Model:
    def model(given: Operands) -> Work:
        image, weight = given.shape(0), given.shape(1)
        spread = is_transposed or (places.transposed is not None and given.truth(places.transposed))
        extra = given.numbers(places.output_padding) if places.output_padding is not None else ()
        numbers = (given.numbers(place) for place in (places.stride, places.padding, places.dilation))
        stride, padding, dilation = (_of_all(some, len(weight) - 2) for some in numbers)
        if len(image) != len(weight) or len(weight) < 3:
            raise NotRecorded
        output = []
        for axis, (size, kernel) in enumerate(zip(image[2:], weight[2:], strict=True)):
            reach = dilation[axis] * (kernel - 1)
            if spread:
                more = extra[axis] if axis < len(extra) else 0
                output.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + 1 + more)
            else:
                output.append((size + 2 * padding[axis] - reach - 1) // max(stride[axis], 1) + 1)
        if spread:
            places_of_it, written = prod(image[2:]), prod(output) * image[0] * weight[1]
        else:
            places_of_it, written = prod(output), prod(output) * image[0] * weight[0]
        flops = 2 * prod(weight) * image[0] * places_of_it
        return Work(flops, given.bytes(0, 1) + written * given.item_bytes(0), given.format(0))

    return model


def _of_all(numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    """A number for every axis: one number stands for all of them."""
    if len(numbers) == 1:
        return numbers * count
    if len(numbers) != count:
        raise NotRecorded
    return numbers


def _convolution_backward(given: Operands) -> Work:
    """(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask)."""
    gradient, image, weight = given.shape(0), given.shape(1), given.shape(2)
    mask = given.truths(10)
    conv: Shape = image if given.truth(7) else gradient
    once = 2 * prod(weight) * image[0] * prod(conv[2:])
    wanted = [place for place, is_wanted in zip((1, 2), mask, strict=False) if is_wanted]
    # Each gradient reads the gradient of the output and the other operand, and is as large as its own.
    moved = sum(given.bytes(0, 1, 2) for _ in wanted)
    return Work(once * len(wanted), moved, given.format(0))


def convolution_sizes(name: str, given: Operands) -> list[tuple[tuple[int, int], int]]:
    """Bytes of what each result of a convolution reads and of the result, in the order in which PyTorch asks for them.

    Forward one result, backward the gradient of the input and that of the weight, as far as they are wanted. What is
    read stands in the order in which cuDNN converts it. Raises NotRecorded.
    """
    if name != "convolution_backward":
        model = MODELS.get(name)
        if model is None:
            raise NotRecorded
        read = (given.bytes(0), given.bytes(1))
        return [(read, model(given).bytes - sum(read))]
    gradient, image, weight = (given.bytes(place) for place in range(3))
    results = (((weight, gradient), image), ((image, gradient), weight))
    return [result for result, is_wanted in zip(results, given.truths(10), strict=False) if is_wanted]


MODELS: Mapping[str, Model] = {
    "mm": _mm,
    "_int_mm": _mm,
    "_scaled_mm": _mm,
    "addmm": lambda given: _mm(given, 1),
    "_addmm_activation": lambda given: _mm(given, 1),
    "bmm": _bmm,
    "baddbmm": lambda given: _bmm(given, 1),
    "mv": _mv,
    "addmv": lambda given: _mv(given, 1),
    "dot": _dot,
    "vdot": _dot,
    "linear": _linear,
    "convolution": _convolution(_Places(3, 4, 5, 6, 7)),
    "_convolution": _convolution(_Places(3, 4, 5, 6, 7)),
    "cudnn_convolution": _convolution(_Places(3, 2, 4)),
    "cudnn_convolution_transpose": _convolution(_Places(4, 2, 5, output_padding=3), is_transposed=True),
    "miopen_convolution": _convolution(_Places(4, 3, 5)),
    "miopen_depthwise_convolution": _convolution(_Places(4, 3, 5)),
    "_conv_depthwise2d": _convolution(_Places(4, 5, 6)),
    "conv_depthwise3d": _convolution(_Places(4, 5, 6)),
    "convolution_backward": _convolution_backward,
}
"""Cost models by the operator's name without `aten::`."""
