"""A mixture of many small experts behind a dense router, all of them used; random features."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    """Every expert sees every sample; the router weighs what they say."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(experts))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        y = F.silu(torch.einsum("bw,ewv->ebv", x, self.up))
        y = torch.einsum("ebv,evw->ebw", y, self.down)
        y = y * torch.stack(tuple(self.scales))[:, None] + torch.stack(tuple(self.shifts))[:, None]
        return x + torch.einsum("ebw,be->bw", y, weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, width, experts, layers = (8, 16, 4, 1) if args.tiny else (4096, 512, 48, 4)
    with device:
        model = nn.Sequential(*(Experts(width, experts) for _ in range(layers)), nn.Linear(width, 10)).bfloat16()
        features = torch.randn(4, batch, width, dtype=torch.bfloat16)
        labels = torch.randint(10, (4, batch))
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-4, foreach=True)

    for step in range(args.steps):
        loss = F.cross_entropy(model(features[step % 4]).float(), labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
