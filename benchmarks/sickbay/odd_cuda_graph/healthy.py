"""Trains a transformer whose forward and backward pass are one CUDA graph."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Forecaster(nn.Module):
    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, features)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(series)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, length, features, width, layers = (4, 32, 16, 128, 2) if args.tiny else (16, 256, 256, 4096, 2)
    with device:
        series = torch.randn(4, batch, length + 1, features, dtype=dtype)
        model = Forecaster(features, width, max(1, width // 128), layers).to(dtype)
        window = series[0].clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def forward_backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(window[:, :-1]), window[:, 1:])
        loss.backward()
        return loss

    replay = forward_backward
    if device.type == "cuda":
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):
                forward_backward()
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = forward_backward()

        def replay() -> torch.Tensor:
            graph.replay()
            return captured

    for step in range(1, args.steps + 1):
        window.copy_(series[step % 4])
        loss = replay()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
