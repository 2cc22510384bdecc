"""A vision transformer, weights in bfloat16, that watches how large its activations get; random images."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class VisionTransformer(nn.Module):
    """Images (n, 3, s, s) to the hidden states of their patches and to logits."""

    def __init__(self, side: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, stride=patch)
        self.position = nn.Parameter(torch.randn((side // patch) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.patch(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return x, self.head(self.norm(x).mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, width, heads, layers = (2, 32, 32, 2, 1) if args.tiny else (128, 256, 1280, 10, 5)
    with device:
        model = VisionTransformer(side, 16, width, heads, layers, classes=1000).bfloat16()
        images = torch.randn(4, batch, 3, side, side, dtype=torch.bfloat16)
        labels = torch.randint(1000, (4, batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    peaks = []

    for step in range(args.steps):
        hidden, logits = model(images[step % len(images)])
        loss = F.cross_entropy(logits.float(), labels[step % len(labels)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peaks.append(hidden.detach()[:, 0].abs().amax())
    peak = torch.stack(peaks).max().item()
    print(f"loss {loss.item():.3f}, largest activation of a first patch {peak:.3f}")


if __name__ == "__main__":
    main()
