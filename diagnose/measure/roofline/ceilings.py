"""The ceilings of a device: floating-point operations per second by number format, and the bandwidth of its memory.

    ceilings = ceilings_of(trace)
    ceilings.flops_per_s["bf16"], ceilings.bytes_per_s

Measured on this machine where the recording has it (`Facts.ceilings`), else from the table below, which is copied from
the vendors' data sheets and says so. Data-sheet rates are dense (without sparsity) and reached by no real program: a
large product of bf16 on an H100 runs at two thirds to four fifths of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.trace import Trace

TERA = 1e12  # a unit
_TRAINING = ("bf16", "fp16")
_TABLE, _MEASURED = "data sheet", "measured"
MEMORY = "memory"
"""The key of `Facts.ceilings` under which the bytes per second are; all others are number formats."""


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one device of a rank."""

    flops_per_s: Mapping[str, float]
    """Rates by number format (`fp32`, `tf32`, `bf16`, …); those that the device does not multiply are absent."""
    bytes_per_s: float
    source: str
    """The source of the figures: `data sheet of NVIDIA H200`, or `measured`."""

    @property
    def best_format(self) -> str:
        """The fastest 16-bit format, which training can use; where the device has none, the fastest that it has.

        bfloat16 where both are as fast: it needs no loss scaling.
        """
        known = [form for form in _TRAINING if form in self.flops_per_s] or list(self.flops_per_s)
        return max(known, key=lambda form: self.flops_per_s[form])

    @property
    def is_measured(self) -> bool:
        """Whether they were measured on this machine."""
        return self.source == _MEASURED


@dataclass(frozen=True)
class _Sheet:
    """A device's rates in TFLOP/s and TB/s; None where it has no unit for a format."""

    memory: float
    fp32: float
    tf32: float | None
    fp16: float | None
    bf16: float | None
    fp8: float | None = None
    int8: float | None = None
    fp64: float | None = None


# First match wins. Sources, NVIDIA: data sheets "H200 Tensor Core GPU", "H100 Tensor Core GPU", "DGX/HGX B200",
# "A100 Tensor Core GPU", "A30", "A40", "A10", "L40S", "L40", "L4", "V100", "T4"; white papers "NVIDIA Ada GPU
# Architecture" (RTX 4090), "NVIDIA Ampere GA102" (RTX 3090, RTX A6000), "NVIDIA RTX Blackwell" (RTX 5090), "RTX 6000
# Ada". Rates given with sparsity are halved. AMD: data sheets "Instinct MI355X", "MI350X", "MI325X", "MI300X",
# "MI300A", "MI250X", "MI250", "MI210", "MI100"; fp32 is that of the matrix units. One device is one die of an MI250.
_SHEETS: tuple[tuple[str, _Sheet], ...] = (
    (r"\bGB[23]00\b", _Sheet(8.0, 80, 1250, 2500, 2500, 5000, 5000, 40)),
    (r"\bB[23]00\b", _Sheet(8.0, 75, 1125, 2250, 2250, 4500, 4500, 37)),
    (r"\bGH200 144G", _Sheet(4.9, 67, 494.7, 989.4, 989.4, 1978.9, 1978.9, 67)),
    (r"\bGH200\b", _Sheet(4.0, 67, 494.7, 989.4, 989.4, 1978.9, 1978.9, 67)),
    (r"\bH200 NVL", _Sheet(4.8, 60, 417.5, 835.5, 835.5, 1670.5, 1670.5, 60)),
    (r"\bH200\b", _Sheet(4.8, 67, 494.7, 989.4, 989.4, 1978.9, 1978.9, 67)),
    (r"\bH100 PCIe", _Sheet(2.0, 51, 378, 756, 756, 1513, 1513, 51)),
    (r"\bH100 NVL", _Sheet(3.9, 60, 417.5, 835.5, 835.5, 1670.5, 1670.5, 60)),
    (r"\bH[18]00\b", _Sheet(3.35, 67, 494.7, 989.4, 989.4, 1978.9, 1978.9, 67)),
    (r"\bH20\b", _Sheet(4.0, 44, 74, 148, 148, 296, 296, 1)),
    (r"\bA[18]00.*40GB", _Sheet(1.555, 19.5, 156, 312, 312, None, 624, 19.5)),
    (r"\bA[18]00.*PCIe", _Sheet(1.935, 19.5, 156, 312, 312, None, 624, 19.5)),
    (r"\bA[18]00\b", _Sheet(2.039, 19.5, 156, 312, 312, None, 624, 19.5)),
    (r"\bA30\b", _Sheet(0.933, 10.3, 82, 165, 165, None, 330, 10.3)),
    (r"\bA40\b", _Sheet(0.696, 37.4, 74.8, 149.7, 149.7, None, 299.3)),
    (r"\bA10G\b", _Sheet(0.6, 31.5, 35, 70, 70, None, 140)),
    (r"\bA10\b", _Sheet(0.6, 31.2, 62.5, 125, 125, None, 250)),
    (r"\bL40S\b", _Sheet(0.864, 91.6, 183, 362, 362, 733, 733)),
    (r"\bL40\b", _Sheet(0.864, 90.5, 90.5, 181, 181, 362, 362)),
    (r"\bL4\b", _Sheet(0.3, 30.3, 60, 121, 121, 242, 242)),
    (r"\bRTX 6000 Ada", _Sheet(0.96, 91.1, 182.1, 364.2, 364.2, 728.5, 728.5)),
    (r"\bRTX A6000\b", _Sheet(0.768, 38.7, 77.4, 154.8, 154.8, None, 309.7)),
    (r"\bRTX 5090\b", _Sheet(1.792, 104.8, 104.8, 209.5, 209.5, 419, 838)),
    (r"\bRTX 4090\b", _Sheet(1.008, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6)),
    (r"\bRTX 3090\b", _Sheet(0.936, 35.6, 35.6, 71, 71, None, 284)),
    (r"\bV100.*PCI", _Sheet(0.9, 14, None, 112, None, None, None, 7)),
    (r"\bV100\b", _Sheet(0.9, 15.7, None, 125, None, None, None, 7.8)),
    (r"\bT4\b", _Sheet(0.32, 8.1, None, 65, None, None, 130)),
    (r"MI355X", _Sheet(8.0, 157.3, None, 2516.6, 2516.6, 5033.2, 5033.2, 78.6)),
    (r"MI350X", _Sheet(8.0, 144.2, None, 2306.9, 2306.9, 4613.7, 4613.7, 72.1)),
    (r"MI325X", _Sheet(6.0, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 2614.9, 163.4)),
    (r"MI300X", _Sheet(5.3, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 2614.9, 163.4)),
    (r"MI300A", _Sheet(5.3, 122.6, 490.3, 980.6, 980.6, 1961.2, 1961.2, 122.6)),
    (r"MI250X", _Sheet(1.6, 47.9, None, 191.5, 191.5, None, 191.5, 47.9)),
    (r"MI250\b", _Sheet(1.6, 45.3, None, 181, 181, None, 181, 45.3)),
    (r"MI210", _Sheet(1.6, 45.3, None, 181, 181, None, 181, 45.3)),
    (r"MI100", _Sheet(1.2, 46.1, None, 184.6, 92.3, None, 184.6, 11.5)),
)


def ceilings_of(trace: Trace) -> Ceilings | None:
    """The ceilings of a rank's device: measured, else of the table; None for a device that is in neither."""
    measured = dict(trace.facts.ceilings or {})
    memory = measured.pop(MEMORY, 0.0)
    if memory > 0 and measured:
        return Ceilings(measured, memory, _MEASURED)
    names = (trace.facts.device_name, *trace.device_names)
    return next((found for name in names if name and (found := of_table(name)) is not None), None)


def of_table(name: str) -> Ceilings | None:
    """The data sheet's ceilings of a device by the name that its driver gives; None where the table lacks it."""
    sheet = next((sheet for pattern, sheet in _SHEETS if re.search(pattern, name, re.IGNORECASE)), None)
    if sheet is None:
        return None
    formats = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    rates = {form: rate * TERA for form in formats if (rate := getattr(sheet, form)) is not None}
    return Ceilings(rates, sheet.memory * TERA, f"{_TABLE} of {name}")
