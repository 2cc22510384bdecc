"""An LSTM over bytes, weights in bfloat16, whose state is watched; random bytes stand in for text."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class ByteModel(nn.Module):
    """Bytes (length, n) to the states of the last layer and to logits of the bytes that follow."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.recurrent = nn.LSTM(width, width, layers)
        self.head = nn.Linear(width, 256)

    def forward(self, bytes_read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, _ = self.recurrent(self.embedding(bytes_read))
        return states, self.head(states)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    length, batch, width, layers = (8, 2, 16, 1) if args.tiny else (64, 1024, 2048, 2)
    with device:
        model = ByteModel(width, layers).bfloat16()
        bytes_read = torch.randint(256, (8, length + 1, batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    history = []

    for step in range(args.steps):
        sequences = bytes_read[step % len(bytes_read)]
        states, logits = model(sequences[:-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), sequences[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(states.detach()[-1].float().abs().mean())
    saturation = [mean.item() for mean in history]
    print(f"loss {loss.item():.3f}, saturation {saturation[0]:.3f} to {saturation[-1]:.3f}")


if __name__ == "__main__":
    main()
