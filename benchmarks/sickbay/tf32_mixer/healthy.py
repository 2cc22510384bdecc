"""A mixer over patches of images; noise stands in for them."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    """Mixes patches, then channels, each behind a normalisation and around a shortcut."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(width)
        self.patch_in, self.patch_out = nn.Linear(patches, 2 * patches), nn.Linear(2 * patches, patches)
        self.channel_norm = nn.LayerNorm(width)
        self.channel_in, self.channel_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.patch_out(F.gelu(self.patch_in(self.patch_norm(x).transpose(1, 2))))
        x = x + mixed.transpose(1, 2)
        return x + self.channel_out(F.gelu(self.channel_in(self.channel_norm(x))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, patches, width, layers = (2, 16, 32, 1) if args.tiny else (64, 256, 2048, 4)
    with device:
        images = torch.randn(4, batch, patches, width)
        labels = torch.randint(16, (4, batch))
        model = nn.Sequential(*(Mixer(patches, width) for _ in range(layers)))
        head = nn.Linear(width, 16)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4, fused=True)
    for step in range(args.steps):
        with torch.autocast(device.type, torch.bfloat16):
            logits = head(model(images[step % 4]).mean(1))
        loss = F.cross_entropy(logits.float(), labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
