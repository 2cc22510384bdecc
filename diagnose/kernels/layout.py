"""Tensors as the matrices that kernels walk: rows as they lie where their elements are neighbours, else copied."""

import torch


def as_rows(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one shape as matrices with neighbouring columns; as they are where all are contiguous.

    Those are a single long row, whatever their shape: a view for each would take as long as an operator.
    """
    if all(tensor.is_contiguous() for tensor in tensors):
        return tensors
    return tuple(map(rows_of, tensors))


def extent(*tensors: torch.Tensor) -> tuple[int, int]:
    """Rows and columns of what `as_rows` returns."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return 1, tensors[0].numel()
    rows, columns = tensors[0].shape
    return rows, columns


def buffer_like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Contiguous memory of a tensor's shape. Made from shape, dtype and device it takes the host four times as long."""
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix of its last dimension: the same memory where it is contiguous."""
    return with_unit_stride(tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1]))


def with_unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy where neighbours in its last dimension are none in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
