"""An ensemble of small networks that model a physical system's next state; random trajectories."""

import argparse

import torch
from torch import nn


class Member(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, width), nn.Linear(width, width), nn.Linear(width, size)])

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layers[0](state))
        x = x + torch.tanh(self.layers[1](x))
        return state + self.layers[2](x)


class Ensemble(nn.Module):
    def __init__(self, members: int, size: int, width: int, ahead: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(Member(size, width) for _ in range(members))
        self.ahead = ahead

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        predicted = []
        for number, member in enumerate(self.members):
            state = states[number]
            for _ in range(self.ahead):
                state = member(state)
            predicted.append(state)
        return torch.stack(predicted)


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
