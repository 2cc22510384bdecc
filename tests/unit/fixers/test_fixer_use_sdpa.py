"""use-sdpa on programs as people write them: the same outputs and gradients, and look-alikes left alone."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Answer, Edits, Gate, example_request
from diagnose.plugins import load

FIXER = load().fixers["use-sdpa"]
HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
FORWARD = "scaled_dot_product_attention("


def rewrite(code: str) -> Answer:
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


PROGRAMS = {
    "mingpt": (
        """
        class CausalSelfAttention(nn.Module):
            def __init__(self, config=None):
                super().__init__()
                self.c_attn = nn.Linear(8, 24)
                self.c_proj = nn.Linear(8, 8)
                self.attn_dropout = nn.Dropout(0.0)
                self.resid_dropout = nn.Dropout(0.0)
                self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))
                self.n_head = 2
                self.n_embd = 8

            def forward(self, x):
                B, T, C = x.size() # batch size, sequence length, embedding dimensionality (n_embd)
                q, k, v  = self.c_attn(x).split(self.n_embd, dim=2)
                k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) # (B, nh, T, hs)
                q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) # (B, nh, T, hs)
                v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) # (B, nh, T, hs)
                # causal self-attention; Self-attend: (B, nh, T, hs) x (B, nh, hs, T) -> (B, nh, T, T)
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = att.masked_fill(self.bias[:,:,:T,:T] == 0, float('-inf'))
                att = F.softmax(att, dim=-1)
                att = self.attn_dropout(att)
                y = att @ v # (B, nh, T, T) x (B, nh, T, hs) -> (B, nh, T, hs)
                y = y.transpose(1, 2).contiguous().view(B, T, C) # re-assemble all head outputs side by side
                y = self.resid_dropout(self.c_proj(y))
                return y
        """,
        "CausalSelfAttention()|[torch.randn(2, 6, 8)]",
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True) # (B, nh, T, hs)",
    ),
    "lecture": (
        """
        head_size, n_embd, block_size = 4, 8, 16

        class Head(nn.Module):
            def __init__(self, head_size):
                super().__init__()
                self.key = nn.Linear(n_embd, head_size, bias=False)
                self.query = nn.Linear(n_embd, head_size, bias=False)
                self.value = nn.Linear(n_embd, head_size, bias=False)
                self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
                self.dropout = nn.Dropout(0.0)

            def forward(self, x):
                B,T,C = x.shape
                k = self.key(x)   # (B,T,hs)
                q = self.query(x) # (B,T,hs)
                # compute attention scores ("affinities")
                wei = q @ k.transpose(-2,-1) * k.shape[-1]**-0.5 # (B, T, hs) @ (B, hs, T) -> (B, T, T)
                wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf')) # (B, T, T)
                wei = F.softmax(wei, dim=-1) # (B, T, T)
                wei = self.dropout(wei)
                # perform the weighted aggregation of the values
                v = self.value(x) # (B,T,hs)
                out = wei @ v # (B, T, T) @ (B, T, hs) -> (B, T, hs)
                return out
        """,
        "Head(4)|[torch.randn(2, 6, 8)]",
        ").squeeze(0) # (B, T, hs)",
    ),
    "vit": (
        """
        class Attention(nn.Module):
            def __init__(self, dim, num_heads=2):
                super().__init__()
                self.num_heads = num_heads
                head_dim = dim // num_heads
                self.scale = head_dim ** -0.5
                self.qkv = nn.Linear(dim, dim * 3)
                self.attn_drop = nn.Dropout(0.)
                self.proj = nn.Linear(dim, dim)

            def forward(self, x):
                B, N, C = x.shape
                qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
                q, k, v = qkv[0], qkv[1], qkv[2]
                attn = (q @ k.transpose(-2, -1)) * self.scale
                attn = attn.softmax(dim=-1)
                attn = self.attn_drop(attn)
                x = (attn @ v).transpose(1, 2).reshape(B, N, C)
                x = self.proj(x)
                return x
        """,
        "Attention(8)|[torch.randn(2, 6, 8)]",
        "scale=self.scale",
    ),
    "scaled query": (
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = 0.3
                self.to_qkv = nn.Linear(8, 24)

            def forward(self, x):
                q, k, v = self.to_qkv(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
                q = q * self.scale
                attn = q @ k.transpose(-2, -1)
                attn = attn.softmax(dim=-1)
                return attn @ v
        """,
        "Attention()|[torch.randn(2, 6, 8)]",
        "F.scaled_dot_product_attention(q, k, v, scale=1.0)",
    ),
    "optional mask": (
        """
        class MultiHead(nn.Module):
            def forward(self, query, key, value, mask=None):
                d_k = query.size(-1)
                scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
                if mask is not None:
                    scores = scores.masked_fill(mask == 0, -1e9)
                p_attn = torch.softmax(scores, dim=-1)
                return torch.matmul(p_attn, value)
        """,
        "MultiHead()|[*(torch.randn(2, 3, 5, 4) for _ in range(3)), (torch.arange(10) % 3).view(2, 1, 1, 5)]",
        "attn_mask=None if mask is None else (mask != 0) | (mask == 0).all(-1, keepdim=True)",
    ),
    "additive mask and float32 softmax": (
        """
        def attend(xq, keys, values, mask):
            scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(4)
            scores = scores + mask  # (bs, n_local_heads, slen, cache_len + slen)
            scores = F.softmax(scores.float(), dim=-1).type_as(xq)
            output = torch.matmul(scores, values)
            return output
        """,
        "attend|[*(torch.randn(2, 3, 5, 4) for _ in range(3)), torch.randn(5, 5)]",
        "attn_mask=mask",
    ),
    "einsum over lists": (
        """
        class SelfAttention(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed_size = 12

            def forward(self, values, keys, queries, mask):
                N = queries.shape[0]
                energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
                if mask is not None:
                    energy = energy.masked_fill(mask == 0, float("-1e20"))
                attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)
                out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(N, 5, 12)
                return out
        """,
        "SelfAttention()|[*(torch.randn(2, 5, 3, 4) for _ in range(3)), torch.ones(5, 5).tril()]",
        "transpose(1, 2)",
    ),
    "heads in the batch": (
        """
        def attend(q, k, v):
            w = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
            w = F.softmax(w, dim=2)
            return torch.bmm(w, v)
        """,
        "attend|[torch.randn(6, 5, 4) for _ in range(3)]",
        "F.scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)).squeeze(0)",
    ),
    "one expression": (
        """
        def attend(q, k, v, dim: int = 4):
            return F.softmax((q * dim ** -0.5).matmul(k.mT), -1).matmul(v)
        """,
        "attend|[torch.randn(2, 3, 5, 4) for _ in range(3)]",
        "return F.scaled_dot_product_attention(q, k, v, scale=dim ** -0.5)",
    ),
    "buffer of booleans, in place": (
        """
        class Attention(nn.Module):
            def __init__(self, context_length=16):
                super().__init__()
                self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

            def forward(self, queries, keys, values):
                num_tokens = queries.shape[2]
                attn_scores = queries @ keys.transpose(2, 3)
                mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
                attn_scores.masked_fill_(mask_bool, -torch.inf)
                attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)
                context_vec = (attn_weights @ values).transpose(1, 2)
                return context_vec
        """,
        "Attention()|[torch.randn(2, 3, 5, 4) for _ in range(3)]",
        "F.scaled_dot_product_attention(queries, keys, values, is_causal=queries.size(-2) > 1)",
    ),
    "where, finfo": (
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = torch.tril(torch.ones((16, 16), dtype=torch.bool)).view(1, 1, 16, 16)

            def forward(self, query, key, value):
                attn_weights = torch.matmul(query, key.transpose(-1, -2))
                attn_weights = attn_weights / (value.size(-1) ** 0.5)
                query_length, key_length = query.size(-2), key.size(-2)
                causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
                mask_value = torch.finfo(attn_weights.dtype).min
                attn_weights = torch.where(causal_mask, attn_weights, mask_value)
                attn_weights = nn.functional.softmax(attn_weights, dim=-1)
                attn_weights = attn_weights.type(value.dtype)
                attn_output = torch.matmul(attn_weights, value)
                return attn_output
        """,
        "Attention()|[torch.randn(2, 3, 5, 4) for _ in range(3)]",
        "attn_mask=",
    ),
    "two masks": (
        """
        def attend(q, k, v, padding):
            T = q.size(2)
            causal = torch.tril(torch.ones(T, T, dtype=torch.bool))
            scores = q @ k.transpose(-2, -1) * 0.5
            scores = scores.masked_fill(~causal, float("-inf"))
            scores = scores.masked_fill(padding, float("-inf"))
            return scores.softmax(-1) @ v
        """,
        "attend|[*(torch.randn(2, 3, 5, 4) for _ in range(3)), (torch.arange(5) > 3).view(1, 1, 1, 5)]",
        "attn_mask=causal & ~padding",
    ),
    "added triangle": (
        """
        def attend(q, k, v):
            B, nh, T, hs = q.shape
            att = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(hs) + torch.triu(
                torch.full((T, T), float("-inf"), device=q.device), diagonal=1
            )
            return torch.softmax(att, dim=-1) @ v
        """,
        "attend|[torch.randn(2, 3, 5, 4) for _ in range(3)]",
        "is_causal=q.size(-2) > 1",
    ),
    "where nothing is seen, by the largest number": (
        """
        class CrossAttention(nn.Module):
            def forward(self, q, k, v, mask):
                sim = torch.einsum("b i d, b j d -> b i j", q, k) * 0.5
                max_neg_value = -torch.finfo(sim.dtype).max
                sim.masked_fill_(~mask[:, None, :], max_neg_value)
                attn = sim.softmax(dim=-1)
                return torch.einsum("b i j, b j d -> b i d", attn, v)
        """,
        "CrossAttention()|[*(torch.randn(3, 5, 4) for _ in range(3)), torch.arange(5) < torch.tensor([[0], [2], [5]])]",
        "attn_mask=mask[:, None, :] | ~mask[:, None, :].any(-1, keepdim=True)",
    ),
    "a bias of distances, and causal": (
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("alibi", torch.randn(3, 16, 16))
                self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

            def forward(self, q, k, v, padding):
                T = q.size(2)
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = att + self.alibi[:, :T, :T]
                att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
                att = att.masked_fill(padding, float("-inf"))
                return F.softmax(att, dim=-1) @ v
        """,
        "Attention()|[*(torch.randn(2, 3, 5, 4) for _ in range(3)), (torch.arange(5) > 3).view(1, 1, 1, 5)]",
        'attn_mask=self.alibi[:, :T, :T].masked_fill((self.bias[:, :, :T, :T] == 0) | padding, float("-inf"))',
    ),
    "one query for many keys": (
        """
        def attend(q, k, v):
            T = q.size(-2)
            mask = torch.tril(torch.ones(T, T)).bool()
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
        """,
        "attend|[torch.randn(2, 3, length, 4) for length in (1, 5, 5)]",
        "is_causal=q.size(-2) > 1",
    ),
    "transposed keys": (
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
                self.softmax = nn.Softmax(dim=-1)

            def forward(self, x):
                q = self.q(x).view(2, 6, 2, 4).transpose(1, 2)
                k_t = self.k(x).view(2, 6, 2, 4).permute(0, 2, 3, 1)
                v = self.v(x).view(2, 6, 2, 4).transpose(1, 2)
                score = (q @ k_t) / math.sqrt(4)
                score = self.softmax(score)
                v = score @ v
                return v
        """,
        "Attention()|[torch.randn(2, 6, 8)]",
        "F.scaled_dot_product_attention(q, k_t.transpose(-2, -1), v)",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_come_out(name: str) -> None:
    code, call, wanted = PROGRAMS[name]
    agrees(code, call, wanted)


CHANGED = """
class Attention(nn.Module):
    def __init__(self, seen=2):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)))
        self.mask[:seen, :seen] = 1

    def forward(self, q, k, v):
        B, nh, T, hs = q.size()
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(hs))
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        return F.softmax(att, dim=-1) @ v
"""


def test_a_triangle_that_is_changed_is_not_causal() -> None:
    inputs = "Attention()|[torch.randn(2, 3, 5, 4) for _ in range(3)]"
    agrees(CHANGED, inputs, "F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:T, :T] != 0)")


LEFT_ALONE = {
    "weights returned": """
        def attend(q, k, v):
            attn = (q @ k.transpose(-2, -1) / 2).softmax(-1)
            return attn @ v, attn
        """,
    "weights kept": """
        class Attention(nn.Module):
            def forward(self, q, k, v):
                attn = (q @ k.transpose(-2, -1) / 2).softmax(-1)
                self.last = attn
                return attn @ v
        """,
    "scores kept": """
        def attend(q, k, v, log):
            scores = q @ k.transpose(-2, -1)
            log.append(scores.max())
            return scores.softmax(-1) @ v
        """,
    "softmax over queries": """
        def attend(q, k, v):
            return (q @ k.transpose(-2, -1)).softmax(dim=-2) @ v
        """,
    "scores capped": """
        def attend(q, k, v):
            scores = 30.0 * torch.tanh(q @ k.transpose(-2, -1) / 30.0)
            return scores.softmax(-1) @ v
        """,
    "learned temperature": """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(1))

            def forward(self, q, k, v):
                return (q @ k.transpose(-2, -1) * self.temperature).softmax(-1) @ v
        """,
    "fused already, by choice": """
        def attend(q, k, v, flash):
            if flash:
                y = F.scaled_dot_product_attention(q, k, v)
            else:
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = F.softmax(att, dim=-1)
                y = att @ v
            return y
        """,
    "a mixture of experts": """
        def mix(gates, outputs):
            return torch.softmax(gates, dim=-1) @ outputs
        """,
    "not masked much": """
        def attend(q, k, v, mask):
            return (q @ k.transpose(-2, -1)).masked_fill(mask, -1.0).softmax(-1) @ v
        """,
    "a mask of whole numbers is added": """
        def attend(q, k, v, mask):
            hidden = (1 - mask) * -10000
            return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + hidden).softmax(-1) @ v
        """,
    "heads mixed": """
        class Talking(nn.Module):
            def __init__(self):
                super().__init__()
                self.mix = nn.Linear(4, 4)

            def forward(self, q, k, v):
                attn = self.mix(q @ k.transpose(-2, -1)).softmax(-1)
                return attn @ v
        """,
    "keys change": """
        def attend(q, k, v):
            scores = q @ k.transpose(-2, -1)
            k = k + 1
            return scores.softmax(-1) @ v, k
        """,
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_a_fused_kernel_cannot_do_is_left_alone(name: str) -> None:
    assert not isinstance(rewrite(LEFT_ALONE[name]), Edits)


def test_weights_that_are_returned_are_named_as_the_reason() -> None:
    answer = rewrite(LEFT_ALONE["weights returned"])
    assert isinstance(answer, Advice)
    assert "used elsewhere" in answer.text


DROPS = """
class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, q, k, v):
        attn = self.dropout((q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1))
        return attn @ v
"""


def test_dropout_of_weights_changes_the_training() -> None:
    answer = rewrite(DROPS)
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING
    assert "dropout_p=self.dropout.p if self.dropout.training else 0.0" in answer.files["train.py"]


@pytest.mark.parametrize(
    ("settings", "gate"),
    [
        ("class Config:\n    dropout: float = 0.0\n", None),
        ("class Config:\n    dropout: float = 0.0\nconfig = Config(dropout=args.dropout)\n", None),
        ("class Config:\n    dropout: float = 0.0\nconfig = Config(dropout=share())\n", Gate.TRAINING),
        ("class Config:\n    dropout: float = 0.0\nconfig = Config(dropout=0.1)\n", Gate.TRAINING),
    ],
)
def test_a_share_of_dropout_is_zero_only_where_everything_that_sets_it_says_so(
    settings: str, gate: Gate | None
) -> None:
    answer = rewrite(settings + DROPS)
    assert isinstance(answer, Edits)
    assert answer.gate is gate


def test_a_dropout_that_is_set_to_zero_changes_no_training_and_stays_a_setting() -> None:
    answer = rewrite("class Config:\n    dropout: float = 0.0\n" + DROPS)
    assert isinstance(answer, Edits)
    assert answer.gate is None
    assert "dropout_p=self.dropout.p" in answer.files["train.py"]


def test_gaps_around_what_goes_are_closed_whatever_the_line_ends() -> None:
    code = """
        class Attention(nn.Module):
            def __init__(self, dim_head = 4, dropout = 0.):
                super().__init__()
                self.scale = dim_head ** -0.5
                self.attend = nn.Softmax(dim = -1)
                self.dropout = nn.Dropout(dropout)

            def forward(self, q, k, v):
                q = q.contiguous()

                dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale

                attn = self.attend(dots)
                attn = self.dropout(attn)

                out = torch.matmul(attn, v)
                return out
        """
    text = HEAD + textwrap.dedent(code)
    wanted = "    q = q.contiguous()\n\n        out = F.scaled_dot_product_attention(\n            q,\n            k,\n"
    for newline in ("\n", "\r\n"):
        answer = FIXER.rewrite(example_request("unfused-attention", text.replace("\n", newline)))
        assert isinstance(answer, Edits)
        assert wanted.replace("\n", newline) in answer.files["train.py"]


MASKED = """
def attend(q, k, v, {mask}):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
{fill}
    return scores.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("mask", "fill"),
    [
        ("hidden", "    scores = scores.masked_fill(hidden, -1e9)"),
        ("hidden", "    scores = scores.masked_fill(hidden, -1e4)"),
        ("hidden", "    scores = torch.where(hidden, torch.finfo(scores.dtype).min, scores)"),
        ("hidden", "    scores = torch.where(~hidden, scores, -1e9)"),
        (
            "hidden",
            "    scores = scores.masked_fill(hidden[:1], -1e9)\n    scores = scores.masked_fill(hidden, -1e9)",
        ),
    ],
)
def test_a_row_of_which_nothing_is_seen_keeps_its_even_weights_and_no_gradient(mask: str, fill: str) -> None:
    hidden = "torch.rand(2, 1, 5, 5).lt(0.4) | (torch.arange(5) == 2)[:, None]"
    agrees(
        MASKED.format(mask=mask, fill=fill), f"attend|[*(torch.randn(2, 3, 5, 4) for _ in range(3)), {hidden}]", FORWARD
    )


def test_masks_of_two_fill_values_are_left_alone() -> None:
    fills = "    scores = scores.masked_fill(a, -1e9)\n    scores = scores.masked_fill(b, -1e4)"
    assert not isinstance(rewrite(MASKED.format(mask="a, b", fill=fills)), Edits)


@pytest.mark.parametrize(
    "keys",
    [
        "k = torch.cat([past, k], dim=2)",
        "if past is not None:\n        k = join(past, k)",
        "k = self.cache[:, :, :end]",
    ],
)
def test_a_causal_mask_over_keys_of_earlier_calls_stays_a_mask(keys: str) -> None:
    answer = rewrite(
        "def attend(self, q, k, v, past, end):\n"
        f"    {keys}\n    mask = torch.tril(torch.ones(q.size(-2), q.size(-2)))\n"
        "    scores = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, float('-inf'))\n"
        "    return scores.softmax(-1) @ v\n"
    )
    assert not isinstance(answer, Edits) or "is_causal" not in answer.files["train.py"]


WIDE = """
def attend(q, k, v):
    att = ({q} @ {k}.transpose(-2, -1)) / q.size(-1) ** 0.5
    return att.softmax(-1){back} @ {v}
"""


def test_scores_made_in_float32_take_queries_and_keys_of_the_values_format() -> None:
    answer = rewrite(WIDE.format(q="q.float()", k="k.to(torch.float32)", v="v", back=".to(v.dtype)"))
    assert isinstance(answer, Edits)
    names: dict[str, Any] = {}
    exec(answer.files["train.py"], names)
    q, k, v = (torch.randn(2, 3, 5, 4).bfloat16() for _ in range(3))
    wanted = ((q.float() @ k.float().mT) / 2).softmax(-1).bfloat16() @ v
    torch.testing.assert_close(names["attend"](q, k, v), wanted, rtol=0.0, atol=0.01)  # 8 bits of numbers about 1


@pytest.mark.parametrize(
    ("q", "k", "v", "back"),
    [
        ("q", "k", "v.float()", ".float()"),
        ("q.float()", "k", "v", ".to(v.dtype)"),
        ("q", "k", "v.double()", ".float()"),
    ],
)
def test_operands_of_several_formats_are_left_alone(q: str, k: str, v: str, back: str) -> None:
    assert isinstance(rewrite(WIDE.format(q=q, k=k, v=v, back=back)), Advice)


@pytest.mark.parametrize(
    "use",
    [
        "penalty = torch.autograd.grad(loss, x, create_graph=True)",
        "hessian = torch.func.hessian(model)(x)",
        "model.dropout.register_forward_hook(keep)",
    ],
)
def test_hooks_and_second_derivatives_keep_what_the_program_wrote(use: str) -> None:
    answer = rewrite(DROPS + f"\n\n{use}\n")
    assert isinstance(answer, Advice)
    assert "train.py:" in answer.text


def test_a_share_that_the_program_sets_later_is_not_taken_for_zero() -> None:
    plain = DROPS.replace("config.dropout", "0.0")
    constant, scheduled = rewrite(plain), rewrite(plain + "\n\nmodel.dropout.p = 0.2\n")
    assert isinstance(constant, Edits)
    assert isinstance(scheduled, Edits)
    assert "dropout_p" not in constant.files["train.py"]
    assert "dropout_p=self.dropout.p" in scheduled.files["train.py"]


@pytest.mark.parametrize(
    ("settings", "factor", "edited"),
    [
        ("class Config:\n    scale: float = 0.125\n", "config.scale", True),
        ("class Options:\n    scale: float = 0.125\n", "options.scale", True),
        ("class Config:\n    scale: torch.Tensor = torch.ones(8, 1, 1)\n", "config.scale", False),
        ("", "config.scale", False),
    ],
)
def test_a_setting_is_a_number_by_what_the_file_does_with_it(settings: str, factor: str, edited: bool) -> None:
    text = (settings + DROPS).replace("/ math.sqrt(q.size(-1))", f"* {factor}")
    assert factor in text
    assert isinstance(rewrite(text), Edits) is edited


HELD = """
class Attention(nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.heads = heads
        self.width = d // heads
        self.scale = self.width ** -0.5
        self.qkv = nn.Linear(d, 3 * d)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
        weights = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        return (self.drop(weights) @ v).transpose(1, 2).reshape(B, N, C)

class Reduced(nn.Module):
    def forward(self, weights):
        return weights / 2

model = Attention()
"""


@pytest.mark.parametrize(
    "line",
    [
        "model.scale *= 0.9",
        "model.scale = nn.Parameter(torch.ones(()))",
        "model.drop = Reduced()",
        "setattr(model, 'drop', Reduced())",
        "model.drop, model.other = Reduced(), 1",
    ],
)
def test_a_scale_or_a_dropout_that_is_set_from_outside_is_left_alone(line: str) -> None:
    answer = rewrite(f"{HELD}{line}\n")
    assert isinstance(answer, Advice)
    assert "is set from outside of its class" in answer.text


@pytest.mark.parametrize("line", ["", "model.drop.p = 0.2", "args.drop = 0.5", "self.scale = 3"])
def test_another_attribute_of_the_name_hinders_nothing(line: str) -> None:
    assert isinstance(rewrite(f"{HELD}{line}\n"), Edits)
