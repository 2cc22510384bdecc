"""Classifies sounds by features that workers of the loader compute in NumPy; random noise stands in for recordings."""

import argparse
import os

# One thread each: the loader's workers share the cores with each other and with training.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BANDS = 512


class Recordings(Dataset):
    """Frames of a recording, (frames, samples), to the logarithm of the energy in bands, (frames, bands)."""

    def __init__(self, count: int, frames: int, samples: int) -> None:
        self.shape = (frames, samples)
        self.count = count
        time_s = np.arange(samples, dtype=np.float32)[:, None] / 16_000
        phases = 2 * np.pi * time_s * np.linspace(50, 8_000, BANDS, dtype=np.float32)
        self.waves = np.concatenate([np.cos(phases), np.sin(phases)], axis=1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        frames = np.random.default_rng(index).random(self.shape, dtype=np.float32)
        cosines, sines = np.split(frames @ self.waves, 2, axis=1)
        return np.log(cosines**2 + sines**2 + 1e-6), index % 10


class Classifier(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.bands = nn.Linear(BANDS, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.bands(features)).mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    batch, frames, width, layers = (8, 48, 128, 4) if args.tiny else (32, 96, 2048, 8)
    cores = os.cpu_count() or 1
    loader = DataLoader(
        Recordings(args.steps * batch, frames, samples=400),
        batch_size=batch,
        num_workers=max(1, cores // 2),
        pin_memory=on_gpu,
    )
    torch.set_num_threads(max(1, cores - loader.num_workers))
    model = Classifier(width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for features, labels in loader:
        features, labels = features.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            loss = F.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
