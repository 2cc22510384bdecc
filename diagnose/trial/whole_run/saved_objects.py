"""Reads saved values without running anything: torch archives, pickles, NumPy files, safetensors.

A pickle is unpickled with every class and function replaced by an inert record of its name, its arguments and its
state, so that a file can be compared whatever made it. The result is flat: a path into the value → an array, a number,
a string or a hash.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Leaf = Any
"""A NumPy array, or a value that is compared by `==`."""

_DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "ComplexFloatStorage": "c8",
    "ComplexDoubleStorage": "c16",
}
_SAFETENSORS = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": "bf16",
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def read_saved(path: Path) -> dict[str, Leaf] | None:
    """The values in a file, by their paths into it; None where it is none of these formats or is damaged."""
    try:
        data = path.read_bytes()
        if path.suffix in (".npy", ".npz"):
            loaded = np.load(io.BytesIO(data), allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            return {name: loaded[name] for name in loaded.files}
        if path.suffix == ".safetensors":
            return _safetensors(data)
        if zipfile.is_zipfile(io.BytesIO(data)):
            return _archive(data)
        if data[:1] == b"\x80":
            return dict(_flat("", _Inert(io.BytesIO(data), None).load()))
    except (OSError, ValueError, KeyError, IndexError, EOFError, TypeError, AttributeError, RecursionError):
        return None
    except (pickle.UnpicklingError, zipfile.BadZipFile, MemoryError):
        return None
    return None


class _Record:
    """Stands for an object: what it was made of."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items += items

    def add(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))


class _Mapping(dict[Any, Any]):
    """Stands for an OrderedDict, whose attributes do not count: torch keeps the versions of modules there."""

    def __setstate__(self, state: Any) -> None:
        pass


def _stand_in(name: str, args: tuple[Any, ...]) -> Any:
    """Return what stands for the result of calling a class or a function of that name."""
    if name.endswith("._rebuild_tensor_v2"):
        return _tensor(*args[:4])
    if name.endswith("._rebuild_parameter"):
        return args[0]
    return _Mapping(*args) if name == "collections.OrderedDict" else _Record(name, args)


class _Inert(pickle.Unpickler):
    """Makes records instead of objects; nothing of the file runs."""

    def __init__(self, file: io.BytesIO, archive: zipfile.ZipFile | None) -> None:
        super().__init__(file, encoding="latin1")
        self._archive = archive
        self._root = archive.namelist()[0].split("/")[0] if archive is not None else ""

    def find_class(self, module_name: str, global_name: str) -> Any:
        return _class_of(f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> Any:
        _, storage, key, _, count = pid
        assert self._archive is not None
        kind = _DTYPES[str(getattr(storage, "title", storage)).rpartition(".")[2]]
        data = self._archive.read(f"{self._root}/data/{key}")
        return _elements(data, kind)[: int(count)]


def _class_of(name: str) -> type:
    """A class of that name, which pickles call, make instances of without calling, or merely refer to."""

    class Stand:
        title = name

        def __new__(cls, *args: Any, **_kwargs: Any) -> Any:
            return _stand_in(name, args)

    return Stand


def _elements(data: bytes, kind: str) -> Any:
    if kind == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, kind)


def _tensor(storage: Any, offset: int, size: Any, stride: Any) -> Any:
    count = int(np.prod(size)) if size else 1
    if count == 0:
        return np.zeros(tuple(size), storage.dtype)
    if not size:
        return storage[offset : offset + 1].reshape(())
    strides = [int(one) * storage.itemsize for one in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], tuple(size), strides)


def _archive(data: bytes) -> dict[str, Leaf] | None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if not pickles:
            return {name: archive.read(name) for name in sorted(archive.namelist())}
        value = _Inert(io.BytesIO(archive.read(pickles[0])), archive).load()
    return dict(_flat("", value))


def _safetensors(data: bytes) -> dict[str, Leaf]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found: dict[str, Leaf] = {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            values = _elements(data[8 + length + begin : 8 + length + end], _SAFETENSORS[about["dtype"]])
            found[name] = values.reshape(about["shape"])
    return found


def _flat(path: str, value: Any) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, dict):
        yield f"{path}<keys>", sorted(map(str, value))
        for key, one in value.items():
            yield from _flat(f"{path}[{key!r}]", one)
    elif isinstance(value, list | tuple):
        yield f"{path}<length>", len(value)
        for place, one in enumerate(value):
            yield from _flat(f"{path}[{place}]", one)
    elif isinstance(value, set | frozenset):
        yield path, sorted(map(repr, value))
    elif isinstance(value, _Record):
        yield f"{path}<type>", value.name
        yield from _flat(f"{path}.args", value.args)
        if value.state is not None:
            yield from _flat(f"{path}.state", value.state)
        yield from _flat(f"{path}.items", value.items)
        for key, one in value.pairs:
            yield from _flat(f"{path}[{key!r}]", one)
    elif isinstance(value, type):
        yield path, getattr(value, "title", str(value))
    else:
        yield path, value
