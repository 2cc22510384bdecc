"""Values that a forward pass keeps from one step to the next: compiled where compiled code keeps the same."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from compile_programs import FLAT, request

from diagnose.fixer import Advice, Edits
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["compile-model"]
_BODY = "        return torch.tanh(self.inner(x))"
_KEPT = {
    "read outside alone": "        self.rows = len(x) * 2\n        return torch.tanh(self.inner(x))",
    "a tensor that the next pass reads": (
        "        x = self.inner(x)\n"
        "        shown = x - self.seen if hasattr(self, 'seen') else x\n"
        "        self.seen = x.mean(0).detach()\n"
        "        return torch.tanh(shown)"
    ),
    "part of a tensor": (
        "        def halve(given, rows):\n"
        "            given[rows, :] = given[rows] / 2\n"
        "            return given\n\n"
        "        return halve(self.inner(x).clone(), torch.tensor([0, 2]))"
    ),
}


def _run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("body", _KEPT.values(), ids=_KEPT)
def test_what_compiled_code_keeps_as_written_is_compiled(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FLAT.replace(_BODY, body)
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Edits)
    before = _run(text)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))  # needs no C++
    torch._dynamo.reset()
    after = _run(answer.files["train.py"])
    torch._dynamo.reset()
    assert after["result"] == pytest.approx(before["result"], rel=1e-5)
    for name in {"rows", "seen"} & set(vars(before["model"])):
        torch.testing.assert_close(getattr(after["model"], name), getattr(before["model"], name))
    settings = FIXER.settings(request(text, "launch-bound"))
    assert {"compile": "whole", "mode": "reduce-overhead"} not in settings


@pytest.mark.parametrize(
    "kept",
    [
        "self.scale = self.scale * 0.5",
        "self.scale *= 0.5",
        "shown['scale'] = shown['scale'] * 0.5",
        "if self.scale > 0.1: self.scale = self.scale * 0.5",
    ],
)
def test_a_number_that_the_next_pass_reads_is_not_compiled(kept: str) -> None:
    """Compiled code computes with such a number as it was in an early step."""
    text = FLAT.replace(_BODY, f"        {kept}\n        return torch.tanh(self.inner(x) * self.scale)")
    answer = FIXER.rewrite(request(f"shown = {{'scale': 1.0}}\n{text}"))
    assert isinstance(answer, Advice)
    assert "keeps a value of the forward pass" in answer.text


_SCHEDULE = """
class Schedule:
    def __init__(self):
        self.beta = 0.0

    def now(self):
        return self.beta

    def next(self):
        self.beta = min(1.0, self.beta + 0.1)
        return self.beta

schedule = Schedule()
"""


@pytest.mark.parametrize(("asked", "edited"), [("now", True), ("next", False)])
@pytest.mark.parametrize("kept", ["self.schedule", "schedule"])
def test_a_number_that_an_object_sets_for_a_forward_pass_is_not_compiled(kept: str, asked: str, edited: bool) -> None:
    text = FLAT.replace(_BODY, f"        return torch.tanh(self.inner(x) * {kept}.{asked}())")
    text = text.replace("        self.inner =", "        self.schedule = schedule\n        self.inner =")
    answer = FIXER.rewrite(request(_SCHEDULE + text))
    assert isinstance(answer, Edits if edited else Advice)


def test_a_function_of_torch_is_no_method_of_that_name() -> None:
    text = FLAT.replace(_BODY, "        return torch.tanh(self.inner(x))").replace("torch.tanh", "nn.functional.tanh")
    own = "class Meter:\n    def tanh(self):\n        self.calls = self.calls + 1\n"
    assert isinstance(FIXER.rewrite(request(own + text)), Edits)
