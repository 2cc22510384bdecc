"""Code in which autograd is off, by the blocks and the decorator around it."""

from __future__ import annotations

import pytest

from diagnose.source.dataflow.flow import is_without_gradients
from diagnose.source.tree.syntax import parse

FUNCTION = "def fit(x):\n    with timed():\n        y = f(x)\n    return y\n"


@pytest.mark.parametrize(
    ("text", "without"),
    [
        (FUNCTION, False),
        (FUNCTION.replace("timed()", "torch.no_grad()"), True),
        (FUNCTION.replace("timed()", "timed(), inference_mode()"), True),
        (f"@torch.no_grad()\n{FUNCTION}", True),
        (f"@torch.no_grad()\n{FUNCTION}".replace("timed()", "torch.enable_grad()"), False),
        (FUNCTION.replace("y = f", "with enable_grad(): y = f").replace("timed()", "torch.no_grad()"), False),
        (FUNCTION.replace("y = f", "with no_grad(): y = f").replace("timed()", "torch.enable_grad()"), True),
        ("with torch.no_grad():\n    def fit(x):\n        return f(x)\n", False),
    ],
)
def test_the_innermost_mode_counts(text: str, without: bool) -> None:
    source = parse(text)
    assert source is not None
    (call,) = source.calls_named("f")
    assert is_without_gradients(source, call) is without
