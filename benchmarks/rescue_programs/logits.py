"""A language model with a vocabulary of 128 thousand, weights in bfloat16; random tokens stand in for text."""

import torch
import torch.nn.functional as F
from limits import limit_memory, options, peak_bytes
from torch import nn


class FeedForward(nn.Module):
    """A feed-forward network behind a normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    """Tokens (n, length) to logits of those that follow."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(FeedForward(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = options()
    parser.add_argument("--deep", action="store_true", help="so many blocks that they take too much as well")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, width, layers, vocabulary = 16, 1024, 1024, 40 if args.deep else 4, 131072
    if args.tiny:
        batch, length, width, layers, vocabulary = (128, 128, 32, 32, 2048) if args.deep else (32, 128, 32, 2, 8192)
    with device:
        model = LanguageModel(vocabulary, width, layers).bfloat16()
        tokens = torch.randint(vocabulary, (8, batch, length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    limit_memory(args.limit)

    for step in range(args.steps):
        batch_of_tokens = tokens[step % len(tokens)]
        logits = model(batch_of_tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch_of_tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9g} peak {peak_bytes()}")


if __name__ == "__main__":
    main()
