"""Fixers on trainer classes as libraries and papers write them: what has only the look of a site is left alone."""

from __future__ import annotations

import difflib
from dataclasses import replace

import pytest

from diagnose.fixer import Advice, Answer, Edits, Request, Site, example_request
from diagnose.model import Place, Scalar
from diagnose.plugins import load

FIXERS = load().fixers


def asked(fixer: str, rule: str, text: str, at: str = "", sites: tuple[Site, ...] = (), **setting: Scalar) -> Answer:
    """The answer of a fixer where a finding names the line with some code."""
    request: Request = example_request(rule, text, sites=sites, setting=setting)
    (path,) = request.sources
    lines = [number for number, line in enumerate(text.splitlines(), 1) if at and at in line]
    finding = replace(request.finding, where=tuple(Place(path, line) for line in lines))
    return FIXERS[fixer].rewrite(replace(request, finding=finding))


def changed(text: str, answer: Answer) -> list[str]:
    """The lines that go and come, without their indentation."""
    assert isinstance(answer, Edits), answer
    (after,) = answer.files.values()
    compile(after, "edited", "exec")
    compared = list(difflib.unified_diff(text.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    return [line[0] + line[1:].strip() for line in compared if not line.startswith("@@") and line[1:].strip()]


SOLVER = """import torch


class Solver:
    def epoch(self):
        losses = {}
        for x, y in self.loader:
            loss = self.criterion(self.model(x), y)
            losses["loss"] = loss
            loss.backward()
            grad_norm = 0
            for p in self.model.parameters():
                if p.grad is not None:
                    grad_norm += p.grad.data.norm() ** 2
            losses["grad"] = grad_norm ** 0.5
            self.optimizer.step()
            self.metrics.update(losses)
"""


@pytest.mark.parametrize(
    ("root", "stored", "read"),
    [
        ('losses["grad"] = grad_norm ** 0.5', 'losses["grad"]', ""),
        ("self.norm = grad_norm ** 0.5", "self.norm", ""),
        ("self.norm = math.sqrt(grad_norm)", "self.norm", ".item()"),
    ],
)
def test_a_norm_that_an_entry_or_an_attribute_takes_is_still_given_to_it(root: str, stored: str, read: str) -> None:
    text = SOLVER.replace('losses["grad"] = grad_norm ** 0.5', root)
    gradients = "[p.grad for p in self.model.parameters() if p.grad is not None]"
    lines = changed(text, asked("foreach-clip", "host-sync", text))
    assert [line for line in lines if line.startswith("+")] == [
        f"+{stored} = torch.nn.utils.get_total_norm({gradients}){read}"
    ]


def test_a_sum_of_squares_that_an_attribute_takes_is_still_given_to_it() -> None:
    text = SOLVER.replace("grad_norm +=", "self.squares +=").replace("grad_norm = 0", "self.squares = 0")
    text = text.replace(
        'losses["grad"] = grad_norm ** 0.5', "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1)"
    )
    lines = changed(text, asked("foreach-clip", "host-sync", text))
    assert lines[-1] == "+self.squares = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1) ** 2"


def test_clipping_that_is_spelt_out_for_another_kind_of_device_stays_so() -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0{})"
    text = (
        f"import torch\nif device.type == 'npu':\n    {clip.format(', foreach=False')}\nelse:\n    {clip.format('')}\n"
    )
    assert asked("foreach-clip", "host-sync", text) is None
