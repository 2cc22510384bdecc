"""Chooses a kernel's implementation: Triton's where Triton can reach the device, else plain torch."""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

SWITCH = "DIAGNOSE_KERNELS"
"""Environment variable: `torch` keeps Triton out."""

TRITON_DEVICES = ("cuda", "xpu")
"""Device types that Triton compiles for; AMD's devices call themselves `cuda` in torch."""


def backend(device: torch.device | str | None = None) -> Literal["triton", "torch"]:
    """Return the backend that runs on a device (default: the accelerator if there is one, else the CPU)."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return "triton" if _reaches(torch.device(device).type) else "torch"


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether Triton runs what is asked of a tensor and of others on its device."""
    return _reaches(tensor.device.type)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """A context in which dtypes stay as they are: autocast is still on inside the body of a custom operator.

    To make one of torch's takes as long as two operators: there is none where autocast is off anyway.
    """
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def cast_for_autocast(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as autocast hands it to a matrix product."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(kind))
    return tensor


def _reaches(device_type: str) -> bool:
    chosen = os.environ.get(SWITCH, "")
    if chosen not in ("", "torch"):
        raise ValueError(f"{SWITCH}={chosen}: only `torch` is known, and nothing for what fits the device")
    if chosen == "torch" or not _has_triton():
        return False
    return device_type in TRITON_DEVICES or os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
