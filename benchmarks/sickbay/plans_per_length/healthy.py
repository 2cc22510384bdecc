"""A transformer over sentences, each batch as long as its longest one; random words stand in for text."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, shortest, longest, width, layers = (2, 8, 16, 32, 1) if args.tiny else (32, 64, 1024, 1024, 4)
    lengths = torch.randperm(longest - shortest)[: args.steps].add(shortest).tolist()
    with device:
        words = torch.randint(1024, (batch, longest + 1))
        embedding = nn.Embedding(1024, width)
        blocks = nn.Sequential(*(Block(width, width // 16 if args.tiny else width // 64) for _ in range(layers)))
        head = nn.Linear(width, 1024)
    model = nn.Sequential(embedding, blocks, head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        for step in range(args.steps):
            length = lengths[step % len(lengths)]
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(words[:, :length])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), words[:, 1 : length + 1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
