"""Small training programs that are executed within a test."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import torch


def outcome(text: str) -> tuple[str, list[float]]:
    """Return the text that a program prints, and the parameters of its `model` at the end."""
    torch.manual_seed(0)
    printed = io.StringIO()
    names: dict[str, object] = {}
    with redirect_stdout(printed):
        exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return printed.getvalue(), [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
