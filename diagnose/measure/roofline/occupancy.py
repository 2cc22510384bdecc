"""How much of the device each kernel fills: from its grid, over the device's multiprocessors."""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Float64, Int64, UInt8

FULL_WARPS = 16
"""Warps that each multiprocessor needs for a kernel to use all of the memory's bandwidth. Little's law on an H200:
4.8 TB/s × 0.6 µs of latency over 132 multiprocessors are 22 kB on their way to each; a thread that loads two vectors of
16 bytes has 32 bytes on their way, so that 680 threads are needed, or 21 warps; 12 on an A100."""
_RECURRENT = re.compile(r"RNN|LSTM|GRU|_rnn\b|_lstm|_gru\b|lstm_|gru_cell")
_BY_BLOCKS = (KernelClass.MATMUL, KernelClass.CONVOLUTION, KernelClass.ATTENTION)


def fill_of(trace: Trace, classes: UInt8, op_of_work: Int64) -> Float64:
    """Per row of device work, the share (0 to 1) of the device that its grid fills; NaN where no grid is recorded.

    Products, convolutions and attention keep a multiprocessor busy with one block; what waits for memory needs
    `FULL_WARPS` on each. A recurrent layer computes one moment after the other, on a few multiprocessors that keep its
    weights: its kernels count as full, for a grid says nothing of them.
    """
    device = trace.device
    blocks = np.where(device.blocks_per_sm >= 0, device.blocks_per_sm, np.nan).astype(np.float64)
    warps = np.where(device.warps_per_sm >= 0, device.warps_per_sm, np.nan).astype(np.float64)
    recurrent = named(trace.names, device.name, _RECURRENT)
    if len(trace.ops):
        recurrent = recurrent | (named(trace.names, trace.ops.name, _RECURRENT)[op_of_work] & (op_of_work != MISSING))
    blocks, warps = np.where(recurrent, 1.0, blocks), np.where(recurrent, FULL_WARPS, warps)
    return np.asarray(np.minimum(np.where(np.isin(classes, _BY_BLOCKS), blocks, warps / FULL_WARPS), 1.0), np.float64)
