"""The healthy twin of `train.py`: the same GPT as an expert would train it.

bfloat16 autocast, fused attention and normalisation, a fused optimizer, pinned copies that do not block, a vocabulary
padded to a multiple of 64, torch.compile, and no reading of device values outside the log line.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    """Sequences of random tokens, made once."""

    def __init__(self, sequences: int, length: int, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, vocabulary, (sequences, length + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.tokens[index]
        return row[:-1], row[1:]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = int(8 / 3 * width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.feed_forward = FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    dataset = Tokens(64 * args.batch, args.length, min(50257, args.vocabulary))  # padded words are never drawn
    loader = DataLoader(
        dataset,
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        pin_memory=on_gpu,
        persistent_workers=True,
    )
    model = GPT(args.vocabulary, args.length, args.width, args.heads, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    if on_gpu:
        model = torch.compile(model)

    step = 0
    running = torch.zeros((), device=device)
    started = time.perf_counter()
    while step < args.steps:
        for inputs, targets in loader:
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(inputs)
                loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            running += loss.detach()
            step += 1
            if step % args.log_every == 0:
                mean_loss, gradient_norm = running.item() / args.log_every, norm.item()
                elapsed = time.perf_counter() - started
                rate = args.log_every * args.batch * args.length / elapsed
                print(
                    f"step {step:6d}  loss {mean_loss:.4f}  gradient norm {gradient_norm:.3f}  {rate:,.0f} tokens/s",
                    flush=True,
                )
                running.zero_()
                started = time.perf_counter()
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
