"""fuse-rope on rotary embeddings as people write them: the same queries, keys and gradients, in float64."""

from __future__ import annotations

from functools import partial

import pytest
import rewriting
import torch
from rewriting import FIXERS, imported

from diagnose.fixer import example_request

FIXER = FIXERS["fuse-rope"]
fixed = partial(rewriting.fixed, "fuse-rope", rule="unfused-pointwise")
HEAD = "import torch\n\n\n"
ROTATE_HALF = '''def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


'''
HUGGING_FACE = (
    ROTATE_HALF
    + """def run(q, k, cos, sin, unsqueeze_dim=1):
    cos = torch.cat((cos, cos), -1).unsqueeze(unsqueeze_dim)
    sin = torch.cat((sin, sin), -1).unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""
)
NANOCHAT = """def apply_rotary_emb(x, cos, sin):
    assert x.ndim == 4  # multihead attention
    d = x.shape[3] // 2
    x1, x2 = x[..., :d], x[..., d:]  # split up last dim into two halves
    y1 = x1 * cos + x2 * sin  # rotate pairs of dims
    y2 = x1 * (-sin) + x2 * cos
    return torch.cat([y1, y2], dim=-1)


def run(q, k, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    q, k = apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)
    return q, k
"""
NEIGHBOURS = """def rotate_every_two(x):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply(x, cos, sin):
    return ((x * cos) + (rotate_every_two(x) * sin)).to(x.dtype)


def run(q, k, cos, sin):
    cos, sin = cos[:, None].repeat_interleave(2, -1), sin[:, None].repeat_interleave(2, -1)
    query = apply(q, cos, sin)
    key = apply(k, cos, sin)
    return query, key
"""
CHUNKED = """def turn(x, cos, sin):
    a, b = torch.chunk(x, 2, dim=-1)
    out = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return out.type_as(x)


def run(q, k, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    q = turn(q, cos=cos, sin=sin)
    k = turn(k, cos=cos, sin=sin)
    return q, k
"""
PROGRAMS = {
    "Hugging Face": (HUGGING_FACE, "q_embed, k_embed = rotary(q, k, cos, sin)"),
    "nanochat": (NANOCHAT, "q, k = rotary(q, k, cos, -sin)"),
    "neighbours": (NEIGHBOURS, "query, key = rotary(q, k, cos, sin, interleaved=True)"),
    "chunked": (CHUNKED, "q, k = rotary(q, k, cos, sin)"),
}


def outcome(text: str) -> list[torch.Tensor]:
    module = imported(text)
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(2, heads, 5, 8, dtype=torch.float64, generator=generator, requires_grad=True) for heads in (4, 2)
    )
    angles = torch.randn(1, 5, 4, dtype=torch.float64, generator=generator)
    turned = module.run(q, k, angles.cos(), angles.sin())
    sum((part * torch.arange(part.numel()).view_as(part)).sum() for part in turned).backward()
    assert q.grad is not None
    assert k.grad is not None
    return [*(part.detach() for part in turned), q.grad, k.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_turned_tensors_and_gradients_stay_the_same(name: str) -> None:
    text, wanted = PROGRAMS[name]
    patched = fixed(HEAD + text)
    assert wanted in patched
    for one, other in zip(outcome(HEAD + text), outcome(patched), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (HUGGING_FACE, "(-x2, x1)", "(-x1, x2)"),
        (HUGGING_FACE, "x[..., x.shape[-1] // 2 :]", "x[..., x.shape[-1] // 4 :]"),
        (HUGGING_FACE, "(k * cos) +", "(k * cos) -"),
        (HUGGING_FACE, "rotate_half(k)", "rotate_half(q)"),
        (HUGGING_FACE, "    k_embed =", "    cos = cos * 2\n    k_embed ="),
        (NANOCHAT, "x1 * (-sin)", "x1 * sin"),
        (NANOCHAT, "x2 * cos", "x2 * sin"),
        (NANOCHAT, "y2], dim=-1", "y2], dim=1"),
        (NEIGHBOURS, "x[..., 1::2]", "x[..., 1::3]"),
        (NEIGHBOURS, "key = apply(k,", "key = apply(query,"),
        (CHUNKED, "b * cos + a * sin", "b * cos + b * sin"),
        (CHUNKED, "    a, b =", "    sin = sin.abs()\n    a, b ="),
    ],
)
def test_what_is_another_formula_is_left_alone(text: str, before: str, after: str) -> None:
    assert before in text
    assert FIXER.rewrite(example_request("unfused-pointwise", HEAD + text.replace(before, after))) is None
