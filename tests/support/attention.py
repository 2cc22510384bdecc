"""Attention written out, and the same through `scaled_dot_product_attention`."""

from __future__ import annotations

import textwrap
from typing import Any

import torch

from diagnose.fixer import Answer, Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["use-sdpa"]
HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
FORWARD = "scaled_dot_product_attention("


def rewrite(code: str) -> Answer:
    """What `use-sdpa` answers about a program."""
    return FIXER.rewrite(example_request("unfused-attention", HEAD + textwrap.dedent(code)))


def results(text: str, call: str) -> list[torch.Tensor]:
    """Output and gradients of `model` on `call`, in float64."""
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        exec(compile(text, "train.py", "exec"), names)
        torch.manual_seed(1)
        model = eval(call.partition("|")[0], names)
        inputs = eval(call.partition("|")[2], names)
        leaves = [each.requires_grad_() for each in inputs if each.is_floating_point()]
        output = model(*inputs)
        (output * torch.sin(torch.arange(output.numel()).double()).view_as(output)).sum().backward()
    finally:
        torch.set_default_dtype(default)
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    return [output, *(each.grad for each in [*leaves, *parameters] if each.grad is not None)]


def agrees(code: str, call: str, wanted: str) -> None:
    """Assert that the edited code has `wanted` in it, and gives the same output and gradients."""
    answer = rewrite(code)
    assert isinstance(answer, Edits), answer
    text = answer.files["train.py"]
    assert wanted in text, text
    assert "softmax(" not in text, text
    before, after = results(HEAD + textwrap.dedent(code), call), results(text, call)
    assert len(before) == len(after) > 1
    for one, other in zip(before, after, strict=True):
        if ".float()" in code:
            torch.testing.assert_close(one.float(), other.float())
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
