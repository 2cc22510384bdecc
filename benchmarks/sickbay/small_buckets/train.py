"""Predicts the next readings of many sensors, each with a projection of its own, data-parallel; random readings."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Attention over the sensors and a feed-forward network, each behind a normalisation."""

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


class SensorModel(nn.Module):
    """Readings (n, sensors, samples) to the readings that follow, of the same shape."""

    def __init__(self, sensors: int, samples: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.projections = nn.ParameterList(torch.randn(samples, width) / samples**0.5 for _ in range(sensors))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, samples, bias=False)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        projected = [x @ w for x, w in zip(readings.unbind(1), self.projections, strict=True)]
        return self.head(self.norm(self.blocks(torch.stack(projected, dim=1))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    rank = dist.get_rank()
    torch.manual_seed(0)
    batch, sensors, width, heads, layers = (2, 8, 32, 2, 1) if args.tiny else (64, 256, 2048, 16, 4)
    samples = 32
    with device:
        model = SensorModel(sensors, samples, width, heads, layers).bfloat16()
        generator = torch.Generator(device).manual_seed(1 + rank)
        recorded = torch.randn(17, batch, sensors, samples, generator=generator).bfloat16()
    model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None, bucket_cap_mb=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        now = step % (len(recorded) - 1)
        loss = F.mse_loss(model(recorded[now]).float(), recorded[now + 1].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.3f}")
    dist.barrier()  # nobody leaves while others still send
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
