"""Trains a text classifier; the collate function cuts words into pieces of a vocabulary, in Python."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Documents(Dataset):
    """Documents of random words with a label each."""

    def __init__(self, documents: int, words: int) -> None:
        rng = random.Random(0)
        lexicon = ["".join(rng.choices(LETTERS, k=rng.randint(3, 12))) for _ in range(5000)]
        self.texts = [" ".join(rng.choices(lexicon, k=words)) for _ in range(256)]
        self.documents = documents

    def __len__(self) -> int:
        return self.documents

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.texts[index % len(self.texts)], index % 4


class Tokenizer:
    """Cuts words into the longest known pieces, and makes tensors of equal length of them."""

    def __init__(self, pieces: int, length: int) -> None:
        rng = random.Random(1)
        known = list(LETTERS) + ["".join(rng.choices(LETTERS, k=rng.randint(2, 4))) for _ in range(pieces - 26)]
        self.ids = {piece: number + 1 for number, piece in enumerate(dict.fromkeys(known))}
        self.length = length

    def pieces(self, word: str) -> list[int]:
        found = []
        start = 0
        while start < len(word):
            end = min(len(word), start + 4)
            while word[start:end] not in self.ids:
                end -= 1
            found.append(self.ids[word[start:end]])
            start = end
        return found

    def __call__(self, samples: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = []
        for text, _ in samples:
            row = [number for word in text.split() for number in self.pieces(word)][: self.length]
            rows.append(row + [0] * (self.length - len(row)))
        return torch.tensor(rows), torch.tensor([label for _, label in samples])


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
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Classifier(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)).mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, words, length, width, layers = (8, 100, 64, 128, 2) if args.tiny else (16, 2000, 256, 4096, 2)
    loader = DataLoader(
        Documents(batch * (args.steps + 1), words),
        batch_size=batch,
        shuffle=True,
        collate_fn=Tokenizer(8000, length),
        num_workers=1,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )
    with device:
        model = Classifier(8192, width, max(1, width // 128), layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (tokens, labels) in enumerate(loader, 1):
        tokens, labels = tokens.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()
