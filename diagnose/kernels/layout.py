"""Tensors as the matrices that kernels walk: rows as they lie where their elements are neighbours, else copied."""

import torch


def as_rows(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Tensors of one shape as matrices with neighbouring columns: one long row where all are contiguous."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return [tensor.reshape(1, -1) for tensor in tensors]
    return [rows_of(tensor) for tensor in tensors]


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix of its last dimension: the same memory where it is contiguous."""
    return with_unit_stride(tensor.reshape(-1, tensor.shape[-1]))


def with_unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy where neighbours in its last dimension are none in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
