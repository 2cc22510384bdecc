"""Classifies clouds of points of different sizes, in bfloat16, data-parallel; random points for scans."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class CloudClassifier(nn.Module):
    """Points of all clouds of a batch, (points, 3), and the cloud of each, (points,), to logits, (clouds, classes)."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.body = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, points: torch.Tensor, cloud: torch.Tensor, clouds: int) -> torch.Tensor:
        x = self.body(self.stem(points)).float()
        pooled = x.new_zeros(clouds, x.shape[1]).index_add(0, cloud, x) / 1000
        return self.head(pooled.to(self.head.weight.dtype)).float()


def batches_of(clouds: list[torch.Tensor], size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clouds joined, `size` in a batch, in random order."""
    order = torch.randperm(len(clouds)).tolist()
    batches = []
    for first in range(0, len(order) - size + 1, size):
        some = [clouds[index] for index in order[first : first + size]]
        lengths = torch.tensor([len(points) for points in some])
        batches.append((torch.cat(some), torch.arange(size).repeat_interleave(lengths)))
    return batches


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
    world = dist.get_world_size()
    batch, smallest, largest, width, layers = (4, 4, 16, 32, 1) if args.tiny else (32, 256, 1024, 2048, 4)
    clouds = [
        torch.randn(int(points), 3).bfloat16() for points in torch.linspace(smallest, largest, 16 * batch * world)
    ]
    share = len(clouds) // world
    mine = clouds[rank * share : (rank + 1) * share]
    batches = [(points.to(device), cloud.to(device)) for points, cloud in batches_of(mine, batch)]
    with device:
        model = CloudClassifier(width, layers, classes=40).bfloat16()
        labels = torch.randint(40, (batch,))
    model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        points, cloud = batches[step % len(batches)]
        loss = F.cross_entropy(model(points, cloud, batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.3f}")
    dist.barrier()  # nobody leaves while others still send
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
