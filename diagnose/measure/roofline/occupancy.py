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

# First match wins: the vendors' data sheets and white papers (`ceilings`). A device is one die of an MI250.
_MULTIPROCESSORS: tuple[tuple[str, int], ...] = (
    (r"\bG?B[23]00\b", 148),
    (r"\bH100 PCIe", 114),
    (r"\bG?H[128]00\b", 132),
    (r"\bH20\b", 78),
    (r"\bA[18]00\b", 108),
    (r"\bA30\b", 56),
    (r"\b(A40|RTX A6000)\b", 84),
    (r"\bA10G?\b", 72),
    (r"\b(L40S?|RTX 6000 Ada)\b", 142),
    (r"\bL4\b", 58),
    (r"\bRTX 5090\b", 170),
    (r"\bRTX 4090\b", 128),
    (r"\bRTX 3090\b", 82),
    (r"\bV100\b", 80),
    (r"\bT4\b", 40),
    (r"MI35\dX", 256),
    (r"MI3(00X|25X)", 304),
    (r"MI300A", 228),
    (r"MI250X", 110),
    (r"MI2[15]0\b", 104),
    (r"MI100", 120),
)


def multiprocessors(trace: Trace) -> int | None:
    """Return how many multiprocessors a rank's device has; None for a device that no table has."""
    names = (trace.facts.device_name, *trace.device_names)
    table = ((re.compile(pattern, re.IGNORECASE), count) for pattern, count in _MULTIPROCESSORS)
    return next((count for pattern, count in table if any(name and pattern.search(name) for name in names)), None)


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
