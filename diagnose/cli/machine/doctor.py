"""`diagnose doctor`: what this machine offers, and what is missing for what."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagnose.cli.streams import result
from diagnose.units import format_bytes


@dataclass(frozen=True)
class Check:
    """One thing that was looked for."""

    name: str
    found: str | None
    """The version or device that is there; None when it is not."""
    without: str
    """The work that cannot be done without it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this machine offers, and what is missing for what",
        description="Lists what this machine and environment offer (`ok`) and lack (`--`), with what needs it.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Look and print. Never fails: a missing part is an answer."""
    checks = look()
    if args.json:
        result(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2, ensure_ascii=False))
        return 0
    widest = max(len(check.name) for check in checks)
    for check in checks:
        mark, text = ("ok", check.found) if check.found else ("--", f"not found: {check.without}")
        result(f"{mark}  {check.name:<{widest}}  {text}")
    return 0


def look() -> list[Check]:
    """Everything that a command may need, in the order in which a user would miss it."""
    from diagnose.collect.inside.process.process_facts import usable_cores

    return [
        Check("Python", platform.python_version(), "nothing works"),
        Check("PyTorch", _version("torch"), "run, fix and demo need it; analyze does not"),
        Check("GPU", _gpus(), _without_gpu()),
        Check("NVML", _nvml(), "no utilisation or memory counters on the screen"),
        Check("Triton", _version("triton"), "no fused kernels, and no torch.compile on a GPU"),
        Check("CPU cores", str(usable_cores()), "unknown"),
        Check("C++ compiler", _first_tool("c++", "g++", "clang++"), "torch.compile cannot build CPU code"),
        Check("git", _first_tool("git"), "patches are applied without it"),
        Check("nsys", _first_tool("nsys"), "Nsight Systems reports are read as .sqlite alone (`nsys export` makes it)"),
        Check("folder", _writable(Path.cwd()), "run and fix keep their files here; start where you may write"),
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_tool(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


def _gpus() -> str | None:
    # A child process asks torch: importing it here would take a second, and a broken driver may end the process.
    if importlib.util.find_spec("torch") is None:
        return None
    ask = "import torch; print(', '.join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())))"
    try:
        answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None
    return answer.stdout.strip() or None


def _without_gpu() -> str:
    """Yield what a run without a GPU cannot tell; where the driver knows of one, that this PyTorch does not see it."""
    count = _with_nvml(lambda nvml: nvml.nvmlDeviceGetCount()) or 0
    if count:
        return (
            f"the driver has {count}, but this PyTorch ({_version('torch') or 'none'}) sees none: install a build for "
            "the driver's CUDA, or look at CUDA_VISIBLE_DEVICES"
        )
    return "rules about the device cannot tell; host rules can"


def _nvml() -> str | None:
    version = _with_nvml(lambda nvml: nvml.nvmlSystemGetDriverVersion())
    return None if version is None else f"driver {version if isinstance(version, str) else version.decode()}"


def _with_nvml(ask: Callable[[Any], Any]) -> Any:
    """Return NVML's answer; None where there is no driver, or it does not know."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return ask(pynvml)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _writable(folder: Path) -> str | None:
    """The folder and how much room there is, if run folders can be made in it."""
    if not os.access(folder, os.W_OK):
        return None
    return f"{folder}, {format_bytes(shutil.disk_usage(folder).free)} free"
