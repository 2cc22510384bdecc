"""An ensemble of small networks that model a physical system's next state; random trajectories."""

import argparse

import torch
from torch import nn


class Ensemble(nn.Module):
    """All members at once: their weights are stacked."""

    def __init__(self, members: int, size: int, width: int, ahead: int) -> None:
        super().__init__()
        sizes = [(size, width), (width, width), (width, size)]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(members, *each) * each[0] ** -0.5) for each in sizes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(members, 1, each[1])) for each in sizes)
        self.ahead = ahead

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for _ in range(self.ahead):
            x = torch.tanh(torch.baddbmm(self.biases[0], states, self.weights[0]))
            x = x + torch.tanh(torch.baddbmm(self.biases[1], x, self.weights[1]))
            states = states + torch.baddbmm(self.biases[2], x, self.weights[2])
        return states


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, members, size, width, ahead = (4, 2, 3, 8, 2) if args.tiny else (256, 16, 24, 256, 12)
    with device:
        model = Ensemble(members, size, width, ahead)
        states, targets = torch.randn(2, 4, members, batch, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        loss = (model(states[step % 4]) - targets[step % 4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
