"""A vision transformer on random patches, in single precision."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.project(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(2, 3)
        mixed = F.scaled_dot_product_attention(*parts.unbind())
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Vision(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, patches: int) -> None:
        super().__init__()
        self.embed = nn.Linear(768, width)
        self.position = nn.Parameter(torch.zeros(patches, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(patches) + self.position).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, patches, width, heads, layers = (2, 4, 32, 2, 1) if args.tiny else (48, 256, 1024, 16, 6)
    with device:
        model = Vision(width, heads, layers, patches)
        images = torch.randn(4, batch, patches, 768)
        labels = torch.randint(1000, (4, batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        loss = F.cross_entropy(model(images[step % 4]), labels[step % 4], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
