"""Packs what was recorded into few small files, for machines that little can be carried away from.

Profiles of several runs of one program repeat each other: taken out of their gzip and compressed together they need
about a third.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from accuracy_record import RESULTS, read_results, write_atomically

PART_BYTES = 15_000_000
_UNPACKED = ".was-gz"
_PRESET = 3  # 6 takes three times as long for a tenth less


def pack(out: Path, target: Path) -> list[Path]:
    """Write `target`/recorded-00, -01, …: the pieces of one file that hold all of `out`."""
    target.mkdir(parents=True, exist_ok=True)
    folders = sorted(path for path in out.iterdir() if path.is_dir())
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as outer, ProcessPoolExecutor(os.cpu_count()) as pool:
        for folder, packed in zip(folders, pool.map(_packed, folders), strict=True):
            _add(outer, f"{folder.name}.tar.xz", packed)
        for path in [*sorted(out.glob("*.log")), out / RESULTS]:
            _add(outer, path.name, path.read_bytes())
    data = whole.getvalue()
    parts = []
    for number, start in enumerate(range(0, len(data), PART_BYTES)):
        parts.append(target / f"recorded-{number:02d}")
        parts[-1].write_bytes(data[start : start + PART_BYTES])
    return parts


def unpack(parts: Iterable[Path], out: Path) -> None:
    """Put what was packed into `out`, beside what is there."""
    results = read_results(out)
    whole = io.BytesIO(b"".join(path.read_bytes() for path in sorted(parts)))
    with tarfile.open(fileobj=whole) as outer:
        for name, data in _members(outer):
            if name == RESULTS:
                packed = json.loads(data)
                results = {**packed, "tasks": {**results["tasks"], **packed["tasks"]}}
            elif name.endswith(".tar.xz"):
                _unpack_folder(data, out)
            else:
                (out / name).write_bytes(data)
    write_atomically(out / RESULTS, results)


def _packed(folder: Path) -> bytes:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = str(path.relative_to(folder.parent))
            data = path.read_bytes()
            if name.endswith(".json.gz"):
                name, data = name.removesuffix(".gz") + _UNPACKED, gzip.decompress(data)
            _add(tar, name, data)
    return lzma.compress(inner.getvalue(), preset=_PRESET)


def _unpack_folder(data: bytes, out: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(data))) as tar:
        for name, content in _members(tar):
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(_UNPACKED):
                path = path.with_name(f"{path.name.removesuffix(_UNPACKED)}.gz")
                content = gzip.compress(content, 6, mtime=0)
            path.write_bytes(content)


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        file = tar.extractfile(member)
        if file is not None:
            yield member.name, file.read()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
