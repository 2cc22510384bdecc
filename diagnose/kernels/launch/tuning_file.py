"""The file of tuning results: one JSON file that can be read, shared and merged.

`kernels.json` lies in the user's cache folder (`$DIAGNOSE_CACHE`, else `$XDG_CACHE_HOME/diagnose` or
`~/.cache/diagnose`); `DIAGNOSE_CACHE=off` keeps none. An entry counts for exactly its kernel, shape, dtype, device and
versions. Writers take turns and replace the file whole, so no reader ever sees half of one. A file that cannot be read
is put aside under another name and said, never overwritten.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

SCHEMA = 1
NAME = "kernels.json"
LARGEST = 1 << 20
"""No setting of a launch is larger."""


class NotATuningFile(ValueError):
    """Raised for a file that is not what tuning writes. The message says where, in one sentence."""


@dataclass(frozen=True, slots=True)
class Config:
    """Launch parameters of a kernel; those that a kernel does not use stay 0."""

    block: int = 0
    """Elements of a row that a program handles at a time."""
    threads: int = 0
    """Threads of a program, whatever the width of the device's wavefronts."""
    rows: int = 0
    """Rows that a program handles."""
    native: bool = False
    """torch's own operator instead."""

    def __str__(self) -> str:
        if self.native:
            return "torch's own"
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value) or "as it is"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The properties of a call that a tuned choice depends on."""

    kernel: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    """Name and architecture: `NVIDIA H200 (9.0)`, `AMD Instinct MI300X (gfx942)`."""
    versions: str
    """Versions of torch, Triton and this package."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration that was fastest, and how fast it and the default were measured to be."""

    config: Config
    time_ns: int
    default_ns: int


Choices = dict[Key, Choice]


def place() -> Path | None:
    """The path of the tuning file; None where none is kept."""
    chosen = os.environ.get("DIAGNOSE_CACHE", "")
    if chosen.lower() in ("off", "0", "no"):
        return None
    if chosen:
        return Path(chosen) / NAME
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "diagnose" / NAME
    except RuntimeError:  # no home
        return None


def read(path: Path) -> Choices:
    """All entries of a file; none where there is no file. Raises `NotATuningFile`, and OSError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise NotATuningFile(f"it is not JSON ({problem})") from problem
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise NotATuningFile('it is not a tuning file: an object with a list of "entries" was expected')
    if found.get("schema") != SCHEMA:
        raise NotATuningFile(f"its schema is {found.get('schema')!r}; this version reads schema {SCHEMA}")
    return dict(_entry(entry, place) for place, entry in enumerate(found["entries"], 1))


def write(path: Path, choices: Mapping[Key, Choice]) -> None:
    """Replace a file by these entries, in one step."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = [
        asdict(key) | {"config": _settings(choice.config), "time_ns": choice.time_ns, "default_ns": choice.default_ns}
        for key, choice in sorted(choices.items(), key=lambda item: item[0])
    ]
    lines = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    text = (
        f'{{"schema": {SCHEMA}, "entries": [\n  {lines}\n]}}\n'
        if entries
        else f'{{"schema": {SCHEMA}, "entries": []}}\n'
    )
    # Not of `tempfile`, whose files none but their owner may read: this one is there to be shared.
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def merge(path: Path, found: Mapping[Key, Choice], *, replace: bool) -> tuple[int, int, int]:
    """Add entries to a file: how many were new, replaced, and left as they were there.

    An entry that is there already stays, unless `replace`. A file that cannot be read is put aside.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _turn(path):
        kept = _read_in_turn(path)
        known = {key for key in found if key in kept}
        differing = {key for key in known if kept[key].config != found[key].config}
        changed = dict(found) if replace else {key: choice for key, choice in found.items() if key not in known}
        if changed:
            write(path, kept | changed)
        return len(found) - len(known), len(differing) if replace else 0, len(known) - len(differing if replace else ())


def agree(path: Path, key: Key, choice: Choice, candidates: Sequence[Config]) -> Choice:
    """Add a choice to a file, unless another process was first: then that one's is the answer, if it is a candidate."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _turn(path):
        kept = _read_in_turn(path)
        there = kept.get(key)
        if there is not None and there.config in candidates:
            return there
        write(path, kept | {key: choice})
        return choice


def read_or_put_aside(path: Path) -> Choices:
    """The entries of a file; one that cannot be read is renamed and said, and none are known."""
    try:
        return read(path)
    except NotATuningFile:
        with _turn(path):  # another process may have put it aside in the meantime, and written a good one
            return _read_in_turn(path)


def _read_in_turn(path: Path) -> Choices:
    try:
        return read(path)
    except NotATuningFile as problem:
        aside = _free(path)
        path.replace(aside)
        warnings.warn(f"{path}: {problem}; it is kept as {aside.name}, and tuning begins anew", stacklevel=2)
        return {}


def _free(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}.unreadable-{number}{path.suffix}")).exists():
        number += 1
    return aside


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until no other process writes; where files cannot be locked, go on."""
    try:
        import fcntl
    except ImportError:  # not on this system: the last writer wins
        yield
        return
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        with suppress(OSError):  # a network's file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _settings(config: Config) -> dict[str, int | bool]:
    return {name: value for name, value in asdict(config).items() if value}


def _entry(entry: Any, place: int) -> tuple[Key, Choice]:
    """One entry, checked: a file that was shared is not trusted further than its numbers' ranges."""
    if not isinstance(entry, dict):
        raise NotATuningFile(f"entry {place} is not an object")
    texts = [entry.get(name) for name in ("kernel", "dtype", "device", "versions")]
    if not all(isinstance(text, str) and text for text in texts):
        raise NotATuningFile(f"entry {place} does not say its kernel, dtype, device and versions")
    shape, settings = entry.get("shape"), entry.get("config")
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
        raise NotATuningFile(f"entry {place} ({entry['kernel']}) has no shape of whole numbers")
    times = [entry[name] for name in ("time_ns", "default_ns") if _is_count(entry.get(name))]
    if len(times) < 2:
        raise NotATuningFile(f"entry {place} ({entry['kernel']}) has no times in whole nanoseconds")
    known = {field.name for field in fields(Config)}
    if not isinstance(settings, dict) or not settings.keys() <= known:
        raise NotATuningFile(f"entry {place} ({entry['kernel']}) has settings other than {', '.join(sorted(known))}")
    native = settings.get("native", False)
    numbers = {name: value for name, value in settings.items() if name != "native"}
    if not isinstance(native, bool) or not all(_is_count(value) and value <= LARGEST for value in numbers.values()):
        raise NotATuningFile(
            f"entry {place} ({entry['kernel']}) has settings that are no whole numbers up to {LARGEST}"
        )
    kernel, dtype, device, versions = map(str, texts)
    key = Key(kernel, tuple(shape), dtype, device, versions)
    return key, Choice(Config(**numbers, native=native), *times)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
