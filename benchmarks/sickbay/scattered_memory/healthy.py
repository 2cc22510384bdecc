"""A network over sequences of growing length, with a summary of each kept; noise stands in for them."""

import argparse
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, more, width = (2, 8, 1, 16) if args.tiny else (16, 1024, 64, 1024)
    with device:
        model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    summaries = []
    for step in range(args.steps):
        sequences = torch.randn(batch, length + more * step, width, device=device)
        states = model(sequences)
        summaries.append(states[:, -1].detach().repeat(1, 320))
        loss = F.mse_loss(states, sequences)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {len(summaries)} summaries")


if __name__ == "__main__":
    main()
