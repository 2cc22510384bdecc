"""Moving averages of weights: the same numbers from one call over lists."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.fixer import Edits, Gate, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["foreach-average"]

PROGRAM = """
import copy
import torch
from collections import OrderedDict
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
ema = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{define}
for step in range(5):
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {call}
"""
DIFFUSION = '''
@torch.no_grad()
def update_ema(ema_model, model, decay=0.9):
    """Step the EMA model towards the current model."""
    ema_params = OrderedDict(ema_model.named_parameters())
    model_params = OrderedDict(model.named_parameters())
    for name, param in model_params.items():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)
'''
CONTRAST = """
class MoCo:
    m = 0.9
    def __init__(self, encoder_q, encoder_k):
        self.encoder_q, self.encoder_k = encoder_q, encoder_k

    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1. - self.m)
"""
LISTS = """
def update_ema(target_params, source_params, rate=0.9):
    for targ, src in zip(target_params, source_params):
        targ.detach().mul_(rate).add_(src, alpha=1 - rate)
"""
DISTILLED = """
def follow(student, teacher, m=0.9):
    with torch.no_grad():
        for param_q, param_k in zip(student.parameters(), teacher.parameters()):
            param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)
"""
WRITTEN = [
    (DIFFUSION, "update_ema(ema, model)"),
    (CONTRAST, "MoCo(model, ema)._momentum_update_key_encoder()"),
    (LISTS, "update_ema(ema.parameters(), model.parameters())"),
    (DISTILLED, "follow(model, ema)"),
]


def averages(text: str) -> list[Any]:
    """The averaged weights at the end of a program."""
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    return [weight.detach() for weight in names["ema"].parameters()]


@pytest.mark.parametrize(("define", "call"), WRITTEN)
def test_averages_are_the_same_up_to_rounding(define: str, call: str) -> None:
    before = PROGRAM.format(define=define, call=call)
    answer = FIXER.rewrite(example_request("launch-bound", before))
    assert isinstance(answer, Edits)
    after = answer.files["train.py"]
    assert "torch._foreach_lerp_(" in after
    start = averages(PROGRAM.format(define="", call="pass"))
    for was, now, first in zip(averages(before), averages(after), start, strict=True):
        torch.testing.assert_close(now, was, rtol=1e-6, atol=1e-7)
        assert not torch.equal(now, first)


def test_it_is_rounding_and_offered_where_launches_bind() -> None:
    assert FIXER.gate is Gate.ROUNDING
    assert "foreach-average" in load().rules["launch-bound"].fixers


@pytest.mark.parametrize(
    "loop",
    [
        # counts are no weights
        "state = model.state_dict()\nfor name, value in state.items():\n"
        "    kept[name].mul_(0.9).add_(value, alpha=0.1)",
        "for name, value in model.state_dict().items():\n    kept[name].mul_(0.9).add_(value, alpha=0.1)",
        # an optimizer's momentum: no mean
        "for m, g in zip(momenta, gradients):\n    m.mul_(0.9).add_(g)",
        # three models
        "for e, p, q in zip(ema.parameters(), a.parameters(), b.parameters()):\n    e.mul_(0.9).add_(p, alpha=0.1)",
        # the factor is another in each turn
        "for e, p in zip(ema.parameters(), model.parameters()):\n    e.lerp_(p, 1 / p.numel())",
        # something is written in between
        "for e, p in zip(ema.parameters(), model.parameters()):\n"
        "    e.mul_(0.9)\n    p.add_(1)\n    e.add_(p, alpha=0.1)",
        "for e, p in zip(ema.parameters(), model.parameters()):\n    e.add_(p, alpha=0.1).mul_(0.9)",
    ],
)
def test_other_loops_are_left_alone(loop: str) -> None:
    assert FIXER.rewrite(example_request("launch-bound", f"import torch\n{loop}\n")) is None


_PAIRS = "import torch\nfor e, p in zip(ema.parameters(), model.parameters()):\n"
_ANEW = _PAIRS + "    e.data = e.data * 0.9 + p.data * 0.1\n"


@pytest.mark.parametrize(
    "text",
    [
        # what was there is not one time the average
        _PAIRS + "    e.mul_(0.5)\n    e.data = e.data * 0.9 + p.data * 0.1\n",
        _PAIRS + "    e.mul_(0.5).copy_(e * 0.9 + p * 0.1)\n",
        # `1 - a if b else c` is `(1 - a) if b else c`
        _PAIRS + "    e.mul_(1 - d if warm else 0.9).add_(p, alpha=d if warm else 0.9)\n",
        _PAIRS + "    e.mul_(1 - d or 5).add_(p, alpha=d or 5)\n",
        # another number each time that it is asked for
        _PAIRS + "    e.mul_(1 - next(rates)).add_(p, alpha=next(rates))\n",
        # the last weight is read after the loop
        _PAIRS + "    e.lerp_(p, 0.1)\nprint(e.norm())\n",
        # the average begins as the weights' own memory, or lends its own
        _ANEW + "shadow = [p.data for p in model.parameters()]\n",
        _ANEW + "kept = {n: p.detach() for n, p in model.named_parameters()}\n",
        _ANEW + "def store(self):\n    for n, p in ema.named_parameters():\n        self.backup[n] = p.data\n",
        _ANEW + "def swap(self):\n    for n, p in model.named_parameters():\n        p.data = self.shadow[n]\n",
    ],
)
def test_what_a_list_would_average_otherwise_is_left_alone(text: str) -> None:
    assert FIXER.rewrite(example_request("launch-bound", text)) is None


@pytest.mark.parametrize(
    "more", ["", "for p in model.parameters():\n    print(p)\n", "print([e for e in range(3)])\n", "p = 1\nprint(p)\n"]
)
def test_another_binding_of_a_name_of_the_loop_does_not_keep_it(more: str) -> None:
    assert isinstance(FIXER.rewrite(example_request("launch-bound", _ANEW + more)), Edits)


TIED = """
import copy
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6))
model[2].weight = model[0].weight
{define}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {call}
"""
SHADOW = """
class EMA:
    def __init__(self, model, decay):
        self.model, self.decay, self.shadow = model, decay, {}
        for name, param in model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                assert name in self.shadow
                new_average = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = new_average.clone()


average = EMA(model, 0.9)
kept = average.shadow
"""
OF_STATE = """
kept = copy.deepcopy(model.state_dict())


@torch.no_grad()
def update():
    for k, v in model.state_dict().items():
        if v.dtype.is_floating_point:
            kept[k] = kept[k] * 0.99 + v * 0.01
"""


@pytest.mark.parametrize(("define", "call"), [(SHADOW, "average.update()"), (OF_STATE, "update()")])
def test_averages_in_a_dictionary_are_the_same_up_to_rounding(define: str, call: str) -> None:
    before = TIED.format(define=define, call=call)
    answer = FIXER.rewrite(example_request("launch-bound", before))
    assert isinstance(answer, Edits)
    after = answer.files["train.py"]
    assert "torch._foreach_lerp(" in after
    ends: list[dict[str, Any]] = []
    for text in (before, after, TIED.format(define=define, call="pass")):
        names: dict[str, Any] = {}
        exec(compile(text, "train.py", "exec", dont_inherit=True), names)
        ends.append(names["kept"])
    was, now, start = ends
    assert list(was) == list(now)
    for name, tensor in was.items():
        torch.testing.assert_close(now[name], tensor, rtol=1e-6, atol=1e-7)
        assert not now[name].requires_grad
    assert any(not torch.equal(now[name], start[name]) for name in now)


@pytest.mark.parametrize(
    ("is_", "was"),
    [
        ("if v.is_floating_point():\n            assert v.isfinite().all()", "if v.dtype.is_floating_point:"),
        ("if k in kept:", "if v.dtype.is_floating_point:"),
        ("def update(kept):", "def update():"),
        ("kept = copy.deepcopy(model)", "kept = copy.deepcopy(model.state_dict())"),
        ("v * 0.02", "v * 0.01"),
        ("kept[k] * 0.99 + v * 0.01\n            print(k)", "kept[k] * 0.99 + v * 0.01"),
        ("if v.dtype.is_floating_point and v.norm() > 1:", "if v.dtype.is_floating_point:"),
        ("if v.is_floating_point():\n            count = more()", "if v.dtype.is_floating_point:"),
        ("if v.is_floating_point():\n            v = v.abs()", "if v.dtype.is_floating_point:"),
    ],
)
def test_a_dictionary_that_may_hold_more_than_averages_is_left_alone(is_: str, was: str) -> None:
    text = "import copy\nimport torch\n" + OF_STATE
    assert was in text
    assert FIXER.rewrite(example_request("launch-bound", text)) is not None
    assert FIXER.rewrite(example_request("launch-bound", text.replace(was, is_))) is None


_KEPT = """import torch
kept = {{n: p.clone(){form} for n, p in model.named_parameters()}}
for n, p in model.named_parameters():
    {check}
    kept[n] = 0.9 * kept[n] + 0.1 * p.data
"""


@pytest.mark.parametrize(
    ("check", "form", "edited"),
    [
        ("assert n in kept", "", True),
        ("assert n in kept, n", "", True),
        ("assert n in kept and p.isfinite().all()", "", False),
        ("assert n in known", "", False),
        ("assert p.requires_grad", "", False),
        ("pass", ".double()", False),
    ],
)
def test_a_dictionary_says_by_itself_that_it_lacks_a_name_and_nothing_more(check: str, form: str, edited: bool) -> None:
    text = _KEPT.format(check=check, form=form).replace("    pass\n", "")
    assert isinstance(FIXER.rewrite(example_request("launch-bound", text)), Edits) is edited
