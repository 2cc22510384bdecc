"""A regression on wide rows that accumulates gradients of micro-batches, each of which is too large; random rows."""

import torch
import torch.nn.functional as F
from limits import limit_memory, options, peak_bytes
from torch import nn


class Regression(nn.Module):
    """Rows (n, width) to numbers (n,)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.read = nn.Linear(width, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.write = nn.Linear(hidden, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.read(rows))
        x = F.gelu(self.mix(x))
        return self.write(x).squeeze(-1)


batch_size = 65536
accumulate = 2


def main() -> None:
    args = options().parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width, hidden = (16, 256) if args.tiny else (2048, 4096)
    with device:
        model = Regression(width, hidden)
        rows = torch.randn(131072, width)
        numbers = torch.randn(131072)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    limit_memory(args.limit)

    for _ in range(args.steps):
        whole = 0.0
        for micro_step in range(accumulate):
            first = micro_step * batch_size
            found = model(rows[first : first + batch_size])
            loss = F.mse_loss(found, numbers[first : first + batch_size]) / accumulate
            loss.backward()
            whole += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {whole.item():.9g} peak {peak_bytes()}")


if __name__ == "__main__":
    main()
