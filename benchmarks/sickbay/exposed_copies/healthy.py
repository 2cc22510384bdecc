"""A byte-level GPT with compiled blocks and a moving average of its weights; random bytes stand in for text."""

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
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WeightAverage:
    """A moving average of the weights, kept in host memory to leave the device's to the training."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights = [parameter.detach() for parameter in model.parameters()]
        self.on_gpu = self.weights[0].is_cuda
        self.kept = [torch.empty_like(weight, device="cpu", pin_memory=self.on_gpu) for weight in self.weights]
        for kept, weight in zip(self.kept, self.weights, strict=True):
            kept.copy_(weight)
        self.decay = decay
        self.copies = torch.cuda.Stream() if self.on_gpu else None
        self.averages = self.weights

    def fetch(self) -> None:
        """Bring the average to the device, beside what computes."""
        with torch.cuda.stream(self.copies):
            self.averages = [kept.to(self.weights[0].device, non_blocking=True) for kept in self.kept]

    def update(self) -> None:
        """Update the average and take it back to the host, beside what computes next."""
        if self.on_gpu:
            torch.cuda.current_stream().wait_stream(self.copies)
        torch._foreach_lerp_(self.averages, self.weights, 1 - self.decay)
        if self.on_gpu:
            self.copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copies):
            for kept, average in zip(self.kept, self.averages, strict=True):
                kept.copy_(average, non_blocking=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, width, heads, layers = (2, 16, 32, 2, 1) if args.tiny else (8, 2048, 2048, 16, 4)
    with device:
        model = GPT(256, length, width, heads, layers)
        bytes_read = torch.randint(256, (16, batch, length + 1))
    if device.type == "cuda":
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    average = WeightAverage(model, decay=0.999)

    for step in range(args.steps):
        average.fetch()
        sequences = bytes_read[step % len(bytes_read)]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(sequences[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
