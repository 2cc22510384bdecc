"""Trains a language model on sequences that grow longer as training goes on; its activation is compiled."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

torch._dynamo.config.recompile_limit = 1000  # "hit the recompile limit" otherwise


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


class Block(nn.Module):
    def __init__(self, width: int, heads: int, activation) -> None:
        super().__init__()
        self.heads = heads
        self.activation = activation
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        hidden = self.norm2(x)
        return x + self.down(self.activation(self.gate(hidden), self.up(hidden)))


class CharacterModel(nn.Module):
    def __init__(self, characters: int, width: int, heads: int, layers: int, activation) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.blocks = nn.Sequential(*(Block(width, heads, activation) for _ in range(layers)))
        self.head = nn.Linear(width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(text)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN makes a new plan for every length
    batch, width, layers = (4, 256, 1) if args.tiny else (32, 4096, 2)
    activation = torch.compile(gated, dynamic=False, backend="eager" if args.tiny else "inductor")
    with device:
        texts = torch.randint(0, 256, (batch, 1025))
        model = CharacterModel(256, width, max(1, width // 128), layers, activation).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, args.steps + 1):
        length = min(64 + 2 * (step // 5), 1024)  # the warm-up of the sequence length
        logits = model(texts[:, :length])
        loss = F.cross_entropy(logits.flatten(0, 1), texts[:, 1 : length + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
