"""Programs whose reads of the device `defer-item` puts off."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import torch

from diagnose.fixer import Advice, Edits, example_request, lines_with
from diagnose.plugins import load

FIXER = load().fixers["defer-item"]


def outcome(text: str) -> tuple[str, list[float]]:
    """What a program prints, and the parameters that it ends with."""
    torch.manual_seed(0)
    printed = io.StringIO()
    names: dict[str, object] = {}
    with redirect_stdout(printed):
        exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return printed.getvalue(), [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def fixed(text: str) -> Edits | Advice | None:
    lines = lines_with(text, ".item()")
    return FIXER.rewrite(example_request("host-sync", text, lines=lines))
