"""fuse-swiglu on feed-forward networks as people write them: the same outputs and gradients, in float64."""

from __future__ import annotations

from functools import partial

import pytest
import rewriting
import torch
from rewriting import FIXERS, imported

from diagnose.fixer import example_request
from diagnose.model import Site

FIXER = FIXERS["fuse-swiglu"]
fixed = partial(rewriting.fixed, "fuse-swiglu", rule="unfused-pointwise")
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
PROGRAMS = {
    "Llama": (
        """class Unit(nn.Module):
    def __init__(self, dim=6, hidden_dim=10):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))
""",
        "return self.w2(swiglu(self.w1(x), self.w3(x)))",
    ),
    "named parts": (
        """class Unit(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(6, 10), nn.Linear(6, 10)
        self.down_proj = nn.Linear(10, 6)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states):
        gate = self.act_fn(self.gate_proj(hidden_states))
        up = self.up_proj(hidden_states)
        down_proj = self.down_proj(gate * up)
        return down_proj
""",
        "self.down_proj(swiglu(self.gate_proj(hidden_states), up))",
    ),
    "halves, GELU": (
        """class GEGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return F.gelu(gate) * x


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 10), GEGLU(), nn.Linear(5, 6))

    def forward(self, x):
        return self.net(x)
""",
        "return geglu(gate, x)",
    ),
    "halves, in three lines": (
        """class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi = nn.Linear(6, 20)
        self.wo = nn.Linear(10, 6)

    def forward(self, x):
        gate, value = torch.split(self.wi(x), 10, dim=-1)
        gate = nn.functional.gelu(gate, approximate="tanh")
        value = gate * value
        return self.wo(value)
""",
        'value = geglu(gate, value, "tanh")',
    ),
}


def outcome(text: str) -> list[torch.Tensor]:
    module = imported(text)
    torch.manual_seed(0)
    unit = module.Unit().double()
    x = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    y = unit(x)
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in unit.parameters())]


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_and_gradients_stay_the_same(name: str) -> None:
    text, wanted = PROGRAMS[name]
    patched = fixed(HEAD + text)
    assert wanted in patched
    for one, other in zip(outcome(HEAD + text), outcome(patched), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_a_function_of_that_name_is_not_taken_for_the_operator() -> None:
    text = HEAD + "def swiglu(x):\n    x, gate = x.chunk(2, dim=-1)\n    return F.silu(gate) * x\n"
    patched = fixed(text)
    assert "from diagnose.kernels import swiglu as fused_swiglu\n" in patched
    assert "return fused_swiglu(gate, x)" in patched


def test_two_kinds_of_units_share_an_import() -> None:
    both = HEAD + PROGRAMS["halves, GELU"][0] + "\n\n" + PROGRAMS["Llama"][0].replace("class Unit", "class Other")
    once = fixed(both)
    assert "geglu(gate, x)" in once
    assert "swiglu(self.w1(x), self.w3(x))" in once
    assert "from diagnose.kernels import geglu, swiglu\n" in once


@pytest.mark.parametrize(
    "text",
    [
        PROGRAMS["Llama"][0].replace("self.w3 = nn.Linear(dim, hidden_dim", "self.w3 = nn.Linear(dim, 1"),
        PROGRAMS["Llama"][0].replace("self.w3(x))", "self.w3(y))").replace("self, x", "self, x, y"),
        PROGRAMS["halves, GELU"][0].replace("gelu(gate)", "gelu(gate, approximate=way)"),
        PROGRAMS["halves, in three lines"][0].replace("10, dim=-1", "[19, 1], dim=-1"),
    ],
)
def test_what_may_be_of_another_shape_or_formula_is_left_alone(text: str) -> None:
    assert FIXER.rewrite(example_request("unfused-pointwise", HEAD + text)) is None


def test_what_the_compiler_sees_is_left_to_it() -> None:
    text = HEAD + PROGRAMS["Llama"][0]
    decorated = text.replace("    def forward", "    @torch.compile\n    def forward")
    switched = text + "\n\ndef main(fast):\n    model = Unit()\n    if fast:\n        model.compile()\n"
    ran = example_request("unfused-pointwise", switched, sites=[Site("compile", "train.py", 22)])
    assert FIXER.rewrite(example_request("unfused-pointwise", decorated)) is None
    assert FIXER.rewrite(ran) is None
    assert "swiglu(" in fixed(switched), "the switch is off"
    assert "swiglu(" in fixed(text + "\n\n@torch.compile\ndef loss_of(x):\n    return x\n"), "of something else"
