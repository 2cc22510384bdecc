"""An encoder that learns to fill in masked words of a vocabulary of 32003; random words."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Fill(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decode = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encoder(self.words(words)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, width, heads, layers = (2, 8, 32, 2, 1) if args.tiny else (16, 512, 1024, 16, 4)
    vocabulary = 103 if args.tiny else 32003
    with device:
        model = Fill(vocabulary, width, heads, layers).bfloat16()
        words = torch.randint(vocabulary, (4, batch, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        now = words[step % 4]
        masked = now.masked_fill(torch.rand(now.shape, device=device) < 0.15, 0)
        loss = F.cross_entropy(model(masked).flatten(0, 1), now.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
