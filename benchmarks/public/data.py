"""Synthetic data in the formats that the public programs read. Its content teaches a model nothing; its sizes, and what
decoding it costs, are those of real data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

PICTURES, CLASSES, EPOCHS_WORTH = 2400, 100, 40
"""Distinct JPEGs, folders, and hard links of each: an epoch as long as a real one from 80 MB of files."""
VOCABULARY = 33_000
"""WikiText-2 has 33,278 words."""


def images(folder: Path) -> None:
    """An ImageFolder of JPEGs, 400 × 300, some 40 KB each: low frequencies as photographs have them, and grain."""
    pool = folder / "pool"
    pool.mkdir(parents=True)
    names = [str(pool / f"{number:05d}.jpg") for number in range(PICTURES)]
    with ProcessPoolExecutor() as workers:
        list(workers.map(_picture, names, range(PICTURES), chunksize=32))
    for split, copies in (("train", EPOCHS_WORTH), ("val", 1)):
        for number, name in enumerate(names):
            home = folder / split / f"class{number % CLASSES:03d}"
            home.mkdir(parents=True, exist_ok=True)
            for copy in range(copies):
                os.link(name, home / f"{copy:02d}_{number:05d}.jpg")


def _picture(name: str, seed: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize(
        (400, 300), Image.Resampling.BICUBIC
    )
    grain = rng.normal(0, 14, (300, 400, 3))
    Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(name, quality=85)


def tokens(folder: Path) -> None:
    """`train.bin` and `val.bin`: 16-bit token ids, as frequent as words are (Zipf)."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train.bin", 50_000_000), ("val.bin", 2_000_000)):
        ids = np.exp(rng.random(count, dtype=np.float32) * np.log(np.float32(50_257))).astype(np.uint16)
        ids.tofile(folder / name)


def wikitext(folder: Path) -> None:
    """`train.txt`, `valid.txt`, `test.txt` of words, as many lines and words as WikiText-2 has."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(VOCABULARY)])
    for name, lines, count in (("train", 36_718, 2_051_910), ("valid", 3_760, 213_886), ("test", 4_358, 241_211)):
        ids = (np.exp(rng.random(count) * np.log(VOCABULARY)) - 1).astype(np.int64)
        if name == "train":
            ids[:VOCABULARY] = np.arange(VOCABULARY)  # every word of the vocabulary is in it
        cuts = np.sort(rng.integers(0, count, lines - 1))
        text = "\n".join(" " + " ".join(line) + " " for line in np.split(words[ids], cuts))
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")


MAKERS: dict[str, Callable[[Path], None]] = {maker.__name__: maker for maker in (images, tokens, wikitext)}
