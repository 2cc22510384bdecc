"""fuse-add-norm on residual blocks as people write them: the same outputs and gradients, in float64."""

from __future__ import annotations

from functools import partial

import pytest
import rewriting
import torch
from rewriting import FIXERS, imported

from diagnose.fixer import example_request

FIXER = FIXERS["fuse-add-norm"]
fixed = partial(rewriting.fixed, "fuse-add-norm", rule="unfused-pointwise")
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
LLAMA = """class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.attention, self.feed_forward = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.attention_norm = RMSNorm(dim, eps=1e-5)
        self.ffn_norm = RMSNorm(dim, eps=1e-5)

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        out = h + self.feed_forward(self.ffn_norm(h))
        return out
"""
HUGGING_FACE = """class Block(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.self_attn, self.mlp = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.input_layernorm = nn.LayerNorm(dim)
        self.post_attention_layernorm = nn.LayerNorm(dim, bias=False)

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states

        # Fully Connected
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states
"""
AFTER = """class Block(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.attn = nn.Linear(dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim, eps=1e-3)
        self.dropout = nn.Dropout(0.0)

    def forward(self, src):
        x = self.norm1(src + self.dropout(self.attn(src)))
        x = x + self.linear2(self.dropout(torch.relu(self.linear1(x))))
        x = self.norm2(x)
        return x
"""
THREE = """class Block(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.one, self.two = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm((dim,), 1e-6, elementwise_affine=False)

    def forward(self, x):
        x = x + self.parts[0](x)
        x = x + self.parts[1](self.one(x))
        x = x + self.parts[2](self.two(x))
        return x
"""
PROGRAMS = {
    "Llama": (LLAMA, ["normed, h = add_rms_norm(", "out = h + self.feed_forward(normed)"]),
    "Hugging Face": (HUGGING_FACE, ["hidden_states, residual = add_layer_norm("]),
    "after the sum": (AFTER, ["x = add_layer_norm(", ")[0]\n", "x, _ = add_layer_norm("]),
    "one after the other": (
        THREE,
        [
            "normed, x = add_rms_norm(self.parts[0](x), x, self.one.weight, self.one.eps)",
            "normed, x = add_rms_norm(self.parts[1](normed), x, self.two.weight, self.two.eps)",
            "x = x + self.parts[2](normed)",
        ],
    ),
}


def outcome(text: str) -> list[torch.Tensor]:
    module = imported(text)
    torch.manual_seed(0)
    block = module.Block().double()
    x = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    y = block(x * 1)
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in block.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_and_gradients_stay_the_same(name: str) -> None:
    text, wanted = PROGRAMS[name]
    patched = fixed(HEAD + text)
    for each in wanted:
        assert each in patched
    for one, other in zip(outcome(HEAD + text), outcome(patched), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_nothing_is_left_of_the_sum() -> None:
    assert fixed(HEAD + HUGGING_FACE).count("residual + hidden_states") == 1, "the last one has no norm in this block"
    assert "self.norm2(x)" not in fixed(HEAD + AFTER)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x + self.attention(self.attention_norm(x))", "x + self.attention.bias"),
        ("RMSNorm(dim, eps=1e-5)", "nn.RMSNorm(dim)"),
        ("RMSNorm(dim, eps=1e-5)", "nn.RMSNorm((4, dim), eps=1e-5)"),
        ("RMSNorm(dim, eps=1e-5)", "nn.BatchNorm1d(4)"),
        ("        out = h +", "        h[0] = 0\n        out = h +"),
        ("        out = h +", "        print(h)\n        out = h +"),
        ("F.rms_norm(x, self", "F.rms_norm(2 * x, self"),
    ],
)
def test_what_is_no_such_pair_is_left_alone(before: str, after: str) -> None:
    assert before in LLAMA
    assert FIXER.rewrite(example_request("unfused-pointwise", HEAD + LLAMA.replace(before, after))) is None
