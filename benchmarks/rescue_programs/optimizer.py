"""An autoencoder of wide rows with Adam, whose state is the last straw; random rows stand in for measured ones."""

import torch
import torch.nn.functional as F
from limits import limit_memory, options, peak_bytes
from torch import nn


class Autoencoder(nn.Module):
    """Rows (n, width) to rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide, narrow = 3 * width // 4, width // 2
        self.read = nn.Linear(width, wide)
        self.encode = nn.Linear(wide, narrow)
        self.decode = nn.Linear(narrow, wide)
        self.write = nn.Linear(wide, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.read(rows))
        x = F.gelu(self.encode(x))
        x = F.gelu(self.decode(x))
        return self.write(x)


def main() -> None:
    args = options().parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count, width = (1024, 1024) if args.tiny else (8192, 16384)
    with device:
        model = Autoencoder(width)
        rows = torch.randn(count, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    limit_memory(args.limit)

    for _ in range(args.steps):
        loss = F.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9g} peak {peak_bytes()}")


if __name__ == "__main__":
    main()
