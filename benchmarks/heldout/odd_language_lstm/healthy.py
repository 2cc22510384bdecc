"""A recurrent language model whose hidden state goes from step to step; reads its loss every 25 steps."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Language(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers)
        self.head = nn.Linear(width, words)

    def forward(
        self, words: torch.Tensor, hidden: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        x, hidden = self.lstm(self.words(words), hidden)
        return self.head(x), hidden


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, words, width, layers = (2, 4, 32, 16, 1) if args.tiny else (256, 96, 8192, 1536, 2)
    with device:
        model = Language(words, width, layers).bfloat16()
        text = torch.randint(words, (8, length + 1, batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    hidden = None
    for step in range(args.steps):
        now = text[step % 8]
        scores, hidden = model(now[:-1], hidden)
        hidden = tuple(state.detach() for state in hidden)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), now[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 24:
            print(f"step {step}: {loss.item():.3f}")
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
