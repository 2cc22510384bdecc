"""A tagger of sequences, weights in bfloat16, whose features are to be about zero: it keeps those of every step."""

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


class Tagger(nn.Module):
    """Tokens (n, length) to features and to logits of their tags."""

    def __init__(self, vocabulary: int, width: int, layers: int, tags: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(FeedForward(width) for _ in range(layers))
        self.head = nn.Linear(width, tags)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.token(tokens)
        for block in self.blocks:
            features = block(features)
        return features, self.head(features)


def main() -> None:
    args = options(steps=90).parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, length, width, layers = (32, 128, 512, 1) if args.tiny else (128, 1024, 1024, 4)
    with device:
        model = Tagger(4096, width, layers, tags=32).bfloat16()
        tokens = torch.randint(4096, (8, batch, length))
        tags = torch.randint(32, (8, batch, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    history = []
    limit_memory(args.limit)

    for step in range(args.steps):
        number = step % len(tokens)
        features, logits = model(tokens[number])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tags[number].flatten())
        loss = loss + 0.01 * features.mean().square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(features)
    sizes = [features[-1].float().abs().mean().item() for features in history]
    print(f"features {sizes[0]:.3f} to {sizes[-1]:.3f}")
    print(f"loss {loss.item():.9g} peak {peak_bytes()}")


if __name__ == "__main__":
    main()
