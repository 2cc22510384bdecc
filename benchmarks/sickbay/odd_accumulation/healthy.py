"""A vision transformer, weights in bfloat16, data-parallel, with accumulated gradients; random images."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


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
    """Images (n, 3, s, s) to logits."""

    def __init__(self, side: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, stride=patch)
        self.position = nn.Parameter(torch.randn((side // patch) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


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
    batch, side, width, heads, layers = (2, 32, 32, 2, 1) if args.tiny else (32, 256, 2048, 16, 5)
    micro_steps = 2 if args.tiny else 4
    with device:
        model = VisionTransformer(side, 16, width, heads, layers, classes=1000).bfloat16()
        generator = torch.Generator(device).manual_seed(1 + rank)
        images = torch.randn(8, batch, 3, side, side, generator=generator).bfloat16()
        labels = torch.randint(1000, (8, batch), generator=generator)
    model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        optimizer.zero_grad()
        for micro_step in range(micro_steps):
            index = (step * micro_steps + micro_step) % len(images)
            with contextlib.nullcontext() if micro_step == micro_steps - 1 else model.no_sync():
                loss = F.cross_entropy(model(images[index]).float(), labels[index])
                (loss / micro_steps).backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.3f}")
    dist.barrier()  # nobody leaves while others still send
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
