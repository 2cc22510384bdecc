"""A bidirectional text encoder with padding, weights in bfloat16; random words."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, self.size)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, -1, x.shape[1], -1)).transpose(1, 2)
        return self.output(mixed.flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x + self.attention(x, bias))
        return self.norms[1](x + self.mlp(x))


class Encoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.classify = nn.Linear(width, 8)

    def forward(self, words: torch.Tensor, is_word: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        bias = torch.zeros_like(is_word, dtype=x.dtype).masked_fill(~is_word, -1e4)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        return self.classify(x[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, words, width, heads, layers = (2, 8, 50, 32, 2, 1) if args.tiny else (24, 1024, 16000, 1024, 16, 6)
    with device:
        model = Encoder(words, width, heads, layers).bfloat16()
        texts = torch.randint(words, (4, batch, length))
        is_word = torch.arange(length) < torch.randint(length // 2, length + 1, (4, batch, 1))
        labels = torch.randint(8, (4, batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    for step in range(args.steps):
        now = step % 4
        loss = F.cross_entropy(model(texts[now], is_word[now]).float(), labels[now])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
