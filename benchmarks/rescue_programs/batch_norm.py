"""A residual network of convolutions with batch normalisation, which may not be computed again; random images."""

import torch
import torch.nn.functional as F
from limits import limit_memory, options, peak_bytes
from torch import nn


class Residual(nn.Module):
    """Two convolutions, each with its normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.second_norm(self.second(y)))


class ResidualNetwork(nn.Module):
    """Images (n, 3, s, s) to logits."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


def main() -> None:
    args = options().parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, width, layers = (32, 32, 32, 6) if args.tiny else (128, 64, 128, 12)
    with device:
        model = ResidualNetwork(width, layers, classes=1000)
        images = torch.randn(4, batch, 3, side, side)
        labels = torch.randint(1000, (4, batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    limit_memory(args.limit)

    for step in range(args.steps):
        number = step % len(images)
        loss = F.cross_entropy(model(images[number]), labels[number])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9g} peak {peak_bytes()}")


if __name__ == "__main__":
    main()
