"""Trains a vision transformer on a folder of compressed images, decoded and augmented as they are loaded."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def make_folder(folder: Path, images: int, size: int) -> None:
    """Images as smooth as photographs, so that they compress as well."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 6, size)
    for number in range(images):
        phases = rng.uniform(0, 6, (2, 3))
        waves = np.sin(ramp[:, None, None] + phases[0]) * np.cos(2 * ramp[None, :, None] + phases[1])
        image = (127 + 100 * waves + rng.integers(0, 8, waves.shape)).astype(np.uint8)
        np.savez_compressed(folder / f"{number:04d}.npz", image=image, label=number % 10)


class ImageFolder(Dataset):
    """Compressed images on disk; a random crop, flip and jitter of each."""

    def __init__(self, folder: Path, crop: int, repeat: int) -> None:
        self.paths = sorted(folder.glob("*.npz")) * repeat
        self.crop = crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        record = np.load(self.paths[index])
        image = record["image"]
        top, left = np.random.randint(0, image.shape[0] - self.crop + 1, 2)
        image = image[top : top + self.crop, left : left + self.crop].astype(np.float32) / 255
        if np.random.random() < 0.5:
            image = image[:, ::-1]
        image = np.clip(image * np.random.uniform(0.8, 1.2), 0, 1) ** np.random.uniform(0.9, 1.1)
        image = (image - MEAN) / STD
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32)), int(record["label"])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        return self.head(self.blocks(self.embed(patches)).mean(dim=1))


def train(folder: Path, steps: int, tiny: bool) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, size, crop, width, layers = (8, 256, 224, 128, 1) if tiny else (16, 256, 224, 4096, 2)
    if tiny:
        torch.set_num_threads(1)  # leaves cores to loading
    make_folder(folder, 32 if tiny else 96, size)
    loader = DataLoader(
        ImageFolder(folder, crop, repeat=-(-(steps + 1) * batch // (32 if tiny else 96))),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        pin_memory=device.type == "cuda",
        num_workers=1 if tiny else 10,
        persistent_workers=True,
        prefetch_factor=4,
    )
    with device:
        model = VisionTransformer(16, width, max(1, width // 128), layers, 10).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (images, labels) in enumerate(loader, 1):
        images = images.to(device, dtype, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
        if step >= steps:
            break


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), args.steps, args.tiny)


if __name__ == "__main__":
    main()
