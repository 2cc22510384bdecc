"""`use-sdpa`: attention in the forms that programs write it in gives the same numbers as before."""

from __future__ import annotations

import pytest
from attention import agrees

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
    "additive mask that leaves the scores": (
        """
        class Attention(nn.Module):
            def forward(self, q, k, v, keep):
                mask = (1.0 - keep.to(q.dtype)) * -10000.0
                return (q @ k.transpose(-2, -1) / 2.0 + mask).softmax(-1) @ v

        def make():
            return Attention()
        """,
        "make()|[torch.randn(2, 3, 5, 4) for _ in range(3)] + [(torch.arange(5) < 3).expand(2, 1, 5, 5)]",
        "attn_mask=",
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
