"""The arithmetic and bytes of each piece of device work: its operator's, divided among the operator's kernels.

    work = kernel_work(trace, rows, op_of_work, op_work)
    work.flops, work.bytes       # per row of trace.device; -1 is unknown

An operator with one kernel gives it everything. Several kernels divide the work by what their names say they do: the
gradients of the input and of the weight of a convolution, conversions of the memory format around it, the gradient of
a normalisation and those of its parameters, the parts of attention's backward pass. What no name tells stays unknown.

These are the bytes that a kernel of this kind moves. They exceed those of the operator where a kernel reads a tensor
twice, as cuDNN's batch normalisation does, or where two kernels read the same one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from diagnose.measure.roofline.list_costs import bytes_by_grid, bytes_of_lists, is_on_lists
from diagnose.measure.roofline.matmul_costs import UNKNOWN, Work, convolution_sizes
from diagnose.measure.roofline.occupancy import multiprocessors
from diagnose.measure.roofline.op_costs import FORMATS, OpWork, work_of_op
from diagnose.measure.roofline.roofline import MATRIX_CLASSES
from diagnose.measure.views.kernel_classes import KernelClass, class_of, class_of_op, matmul_format
from diagnose.measure.views.operands import NotRecorded, Operands, operands
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64, WorkKind

_FP32, _TF32 = FORMATS.index("fp32"), FORMATS.index("tf32")
_NO_PRODUCT = re.compile(r"reduc|workspace|padding|transform|scale|elementwise", re.I)
_HEAD = 80  # of a kernel's name: what follows are parameters of its parts
_TO_NHWC = re.compile(r"nchw_?to\w*nhwc|batched_transpose|transpose_(NCHW|readWrite)", re.I)
_FROM_NHWC = re.compile(r"nhwc_?to\w*nchw", re.I)
_WEIGHT_GRADIENT = re.compile(r"wgrad|bwd_filter|backward_filter|_wrw", re.I)
_INPUT_GRADIENT = re.compile(r"dgrad|bwd_data|backward_data", re.I)
_ATTENTION_HELPER = re.compile(r"dot_do_o|bwd_preprocess|convert_d[qkv]|bwd_postprocess|splitkv_combine")
_ATTENTION_PREPARES = re.compile(r"dot_do_o|bwd_preprocess")
_PARAMETER_GRADIENT = re.compile(r"GammaBeta|PartGrad|gamma_beta|batch_norm_backward_reduce", re.I)
_STATISTICS = re.compile(r"collect_statistics|rowwisemoments|_stats?_kernel", re.I)
_TWO_PASSES = re.compile(r"bn_(fw_tr|bw)_1C11_kernel|batch_norm_(collect_statistics_)?backward_kernel")
_RECURRENT = re.compile(r"_(cudnn|miopen|thnn_fused)_(rnn|lstm|gru)|miopen_rnn")

Part = tuple[int, int]
"""Floating-point operations and bytes of one kernel."""
_NOTHING_KNOWN: Part = (UNKNOWN, UNKNOWN)


@dataclass(frozen=True, eq=False)
class KernelWork:
    """Per row of `trace.device`; rows that were not asked for are unknown."""

    flops: Int64
    bytes: Int64
    format: npt.NDArray[np.uint8]
    """The place in `op_costs.FORMATS` of what products multiply; 0 for all else, and where nobody knows."""
    product: Bool
    """Whether it multiplies matrices itself, as its class and its name say."""


def kernel_work(
    trace: Trace, rows: Int64, classes: npt.NDArray[np.uint8], op_of_work: Int64, work: OpWork
) -> KernelWork:
    """Return the arithmetic and bytes of rows of device work. Sets, and copies on the device, know their own size."""
    device = trace.device
    flops, moved = np.full((2, len(device)), UNKNOWN, np.int64)
    sized = rows[(device.kind[rows] != WorkKind.KERNEL) & (device.size_bytes[rows] >= 0)]
    # A copy on the device reads what it writes.
    flops[sized], moved[sized] = 0, device.size_bytes[sized] * np.where(device.kind[sized] == WorkKind.COPY, 2, 1)
    kernels = rows[(device.kind[rows] == WorkKind.KERNEL) & (op_of_work[rows] != MISSING)]
    kernels = kernels[np.lexsort((kernels, op_of_work[kernels]))]
    ops, first, count = np.unique(op_of_work[kernels], return_index=True, return_counts=True)
    _on_lists(trace, kernels, op_of_work, moved)
    alone = kernels[first[count == 1]]
    alone = alone[moved[alone] < 0]
    flops[alone], moved[alone] = work.flops[op_of_work[alone]], work.bytes[op_of_work[alone]]
    _read_twice(trace, alone, op_of_work, moved)
    for op, begin, length in zip(ops[count > 1].tolist(), first[count > 1], count[count > 1], strict=True):
        mine = kernels[begin : begin + length]
        if (moved[mine] >= 0).any():
            continue
        parts = _parts_of(trace, op, mine)
        flops[mine], moved[mine] = np.array(parts, np.int64).T
    # Which rows of device work multiply matrices, and do not only prepare that or add up its parts
    helps = np.array([*map(_helps, trace.names), False], np.bool_)
    product = np.asarray(np.isin(classes, MATRIX_CLASSES) & ~helps[trace.device.name], np.bool_)
    return KernelWork(flops, moved, _formats(trace, rows[product[rows]], op_of_work, work), product)


def _on_lists(trace: Trace, rows: Int64, op_of_work: Int64, moved: Int64) -> None:
    """What operators on lists of tensors move: by their lists where recorded, else by the grid of each kernel."""
    ops, device = trace.ops, trace.device
    on_lists = np.array([*map(is_on_lists, trace.names), False], np.bool_)
    rows = rows[on_lists[ops.name[op_of_work[rows]]]] if len(rows) else rows
    sms = multiprocessors(trace)
    for op in np.unique(op_of_work[rows]).tolist():
        if ops.shapes[op] == MISSING or ops.dtypes[op] == MISSING:
            continue
        mine = rows[op_of_work[rows] == op]
        names = tuple(trace.names[name] if name >= 0 else "" for name in device.name[mine].tolist())
        blocks = device.blocks_per_sm[mine].astype(np.float64)
        try:
            given = operands(trace.texts[ops.shapes[op]], trace.texts[ops.dtypes[op]])
        except NotRecorded:
            continue
        whole = bytes_of_lists(trace.names[ops.name[op]], given, names)
        if whole is not None:
            weights = blocks if (blocks > 0).all() else np.ones(len(mine))
            moved[mine] = (whole * weights / weights.sum()).astype(np.int64)
        elif sms is not None and (blocks > 0).all():
            grids = np.rint(blocks * sms).astype(np.int64).tolist()
            sizes = [
                bytes_by_grid(trace.names[ops.name[op]], given, name, grid)
                for name, grid in zip(names, grids, strict=True)
            ]
            moved[mine] = [UNKNOWN if size is None else size for size in sizes]


def _read_twice(trace: Trace, rows: Int64, op_of_work: Int64, moved: Int64) -> None:
    """Add the second reading of kernels that need their input's mean first."""
    names = trace.device.name[rows]
    for name in np.unique(names).tolist():
        if name < 0 or not _TWO_PASSES.search(trace.names[name]):
            continue
        mine = rows[(names == name) & (moved[rows] > 0)]
        backward = np.array(["backward" in trace.names[trace.ops.name[op]] for op in op_of_work[mine].tolist()], bool)
        # Forward: one tensor read, one written. Backward: two read, one written.
        moved[mine] += np.where(backward, 2 * moved[mine] // 3, moved[mine] // 2)


def _parts_of(trace: Trace, op: int, rows: Int64) -> tuple[Part, ...]:
    ops = trace.ops
    names = tuple(trace.names[name] if name >= 0 else "" for name in trace.device.name[rows].tolist())
    if ops.shapes[op] == MISSING or ops.dtypes[op] == MISSING:
        return (_NOTHING_KNOWN,) * len(names)
    values = trace.texts[ops.values[op]] if ops.values[op] >= 0 else None
    arguments = (trace.texts[ops.shapes[op]], trace.texts[ops.dtypes[op]], values)
    parts = divided(trace.names[ops.name[op]], arguments, names)
    return _by_grid(trace, rows, names, parts) if len(set(names)) == 1 else parts


def _by_grid(trace: Trace, rows: Int64, names: Sequence[str], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Launches of one kernel share by the size of their grids what the first part says of all of them."""
    blocks = trace.device.blocks_per_sm[rows].astype(np.float64)
    total = parts[0]
    if (blocks <= 0).any() or total == _NOTHING_KNOWN:
        return (_NOTHING_KNOWN,) * len(names)
    shares = blocks / blocks.sum()
    return tuple((_share(total[0], share), _share(total[1], share)) for share in shares.tolist())


def _share(amount: int, share: float) -> int:
    return amount if amount < 0 else int(amount * share)


@lru_cache(maxsize=65536)
def divided(name: str, arguments: tuple[str, str, str | None], kernels: tuple[str, ...]) -> tuple[Part, ...]:
    """The parts of an operator's kernels, in the order of launch.

    `arguments` are the texts of its shapes, number formats and values. Of kernels that all bear one name, each part is
    that of all of them together.
    """
    work = work_of_op(name, *arguments)
    if len(set(kernels)) == 1:
        return ((work.flops, work.bytes),) * len(kernels)
    try:
        given = operands(*arguments)
        kind = class_of_op(name)
        if kind == KernelClass.CONVOLUTION:
            return _of_convolution(name, given, work, kernels)
        if kind == KernelClass.ATTENTION:
            return _of_attention(given, work, kernels)
        if kind == KernelClass.NORM:
            return _of_norm(name, given, work, kernels)
        if kind == KernelClass.MATMUL:
            return _among(work, [not _helps(kernel) for kernel in kernels])
    except NotRecorded:
        pass
    return (_NOTHING_KNOWN,) * len(kernels)


@lru_cache(maxsize=65536)
def _helps(kernel: str) -> bool:
    """Whether a kernel beside a product is none itself, by its name: it prepares one or adds up its parts."""
    kind = class_of(kernel)
    if kind == KernelClass.ATTENTION or _ATTENTION_HELPER.search(kernel):
        return _ATTENTION_HELPER.search(kernel) is not None
    is_other = kind not in (KernelClass.MATMUL, KernelClass.CONVOLUTION, KernelClass.OTHER)
    return is_other or _NO_PRODUCT.search(kernel[:_HEAD]) is not None


def _among(work: Work, chosen: Sequence[bool]) -> tuple[Part, ...]:
    """All of the work to the chosen kernels, in equal parts."""
    count = sum(chosen)
    if count == 0:
        return (_NOTHING_KNOWN,) * len(chosen)
    part = (_share(work.flops, 1 / count), _share(work.bytes, 1 / count))
    return tuple(part if is_one else _NOTHING_KNOWN for is_one in chosen)


def _of_convolution(name: str, given: Operands, work: Work, kernels: Sequence[str]) -> tuple[Part, ...]:
    """Products in the order in which PyTorch asks for the gradients, each with the conversions around it.

    A conversion reads a tensor and writes it again.
    """
    products = [at for at, kernel in enumerate(kernels) if not _helps(kernel)]
    sizes = convolution_sizes(name.removeprefix("aten::"), given)
    parts = [_NOTHING_KNOWN] * len(kernels)
    if not products:
        return tuple(parts)
    turns = _turns(kernels, products, len(sizes))
    flops = _share(work.flops, 1 / max(len(sizes), 1))
    for turn, (read, written) in enumerate(sizes):
        mine = [at for at in products if turns[at] == turn]
        for at in mine:
            parts[at] = (_share(flops, 1 / len(mine)), (sum(read) + written) // len(mine))
        converted = _named(kernels, turns, turn, _TO_NHWC)
        for at, size in zip(converted, read if len(converted) == len(read) else (max(read),), strict=False):
            parts[at] = (0, 2 * size)
        for at in _named(kernels, turns, turn, _FROM_NHWC):
            parts[at] = (0, 2 * written)
    return tuple(parts)


def _turns(kernels: Sequence[str], products: list[int], count: int) -> list[int]:
    """Per kernel, which of the results it belongs to: what stands before a product prepares it, the rest follows it."""
    turn_of: dict[int, int] = {}
    for place, at in enumerate(products):
        by_name = 1 if _WEIGHT_GRADIENT.search(kernels[at]) else 0 if _INPUT_GRADIENT.search(kernels[at]) else None
        turn_of[at] = min(place if by_name is None else by_name, max(count - 1, 0)) if count > 1 else 0
    found, last = [], -1
    for at, kernel in enumerate(kernels):
        ahead = next((product for product in products if product >= at), None)
        prepares = ahead is not None and (at == ahead or last < 0 or not _FROM_NHWC.search(kernel))
        anchor = ahead if prepares and ahead is not None else last
        found.append(turn_of[anchor])
        last = at if at in turn_of else last
    return found


def _named(kernels: Sequence[str], turns: Sequence[int], turn: int, pattern: re.Pattern[str]) -> list[int]:
    return [at for at, kernel in enumerate(kernels) if turns[at] == turn and pattern.search(kernel)]


def _of_attention(given: Operands, work: Work, kernels: Sequence[str]) -> tuple[Part, ...]:
    parts = list(_among(work, [not _helps(kernel) for kernel in kernels]))
    for at, kernel in enumerate(kernels):
        if _ATTENTION_PREPARES.search(kernel):
            parts[at] = (0, 2 * given.bytes(0))  # reads the output and its gradient
    return tuple(parts)


def _of_norm(name: str, given: Operands, work: Work, kernels: Sequence[str]) -> tuple[Part, ...]:
    """Gradients of the parameters read gradient and input; statistics read the input."""
    image = given.bytes(0)
    parts: list[Part] = []
    for kernel in kernels:
        if _PARAMETER_GRADIENT.search(kernel):
            parts.append((work.flops, 2 * image))
        elif _STATISTICS.search(kernel):
            parts.append((work.flops, image))
        else:
            parts.append((work.flops, work.bytes) if _moves_all(name, kernel) else _NOTHING_KNOWN)
    return tuple(parts)


def _moves_all(name: str, kernel: str) -> bool:
    """Whether a kernel is the one that writes the result, among those of a normalisation."""
    wanted = r"grad_input|backward_elemt|bn_bw|dgrad|bwd" if "backward" in name else r"norm|bn_fw|transform"
    return re.search(wanted, kernel, re.I) is not None


def _formats(trace: Trace, rows: Int64, op_of_work: Int64, work: OpWork) -> npt.NDArray[np.uint8]:
    """Return what is multiplied: by the operator's arguments, and where these are fp32, as TF32 if the kernel's name
    says."""
    result = np.zeros(len(trace.device), np.uint8)
    names = trace.device.name[rows]
    for name in np.unique(names).tolist():
        form = matmul_format(trace.names[name] if name >= 0 else "")
        mine = rows[names == name]
        ops = op_of_work[mine]
        result[mine] = np.where(ops == MISSING, 0, work.format[ops] if len(work.format) else 0)
        if form.dtype in FORMATS:
            result[mine[result[mine] == 0]] = FORMATS.index(form.dtype)
        if form.tensor_cores is True:
            result[mine[result[mine] == _FP32]] = _TF32
    return result


def is_recurrent(op_name: str) -> bool:
    """Whether an operator computes one moment after the other."""
    return _RECURRENT.search(op_name) is not None
