"""Trains a language model of characters with an optimizer written after the paper."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay, as in the paper."""

    def __init__(self, parameters, lr: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * p.grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * p.grad**2
                m = state["m"] / (1 - beta1 ** state["t"])
                v = state["v"] / (1 - beta2 ** state["t"])
                p -= group["lr"] * (m / (v.sqrt() + 1e-8) + group["decay"] * p)


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


class CharacterModel(nn.Module):
    def __init__(self, characters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
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
    batch, length, width, layers = (4, 32, 128, 2) if args.tiny else (16, 256, 4096, 2)
    with device:
        texts = torch.randint(0, 256, (4, batch, length + 1))
        model = CharacterModel(256, width, max(1, width // 128), layers).to(dtype)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    for step in range(1, args.steps + 1):
        text = texts[step % 4]
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
