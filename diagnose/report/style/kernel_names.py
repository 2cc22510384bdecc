"""Kernel names as people say them: without return types, template arguments and parameters."""

from __future__ import annotations

import re
from functools import lru_cache

_TEMPLATES = re.compile(r"<[^<>]*>")
_FUNCTOR = re.compile(r"(?:\b|_)((?:CUDA)?Functor_\w+|\w+(?:Functor|Ops?)\b|(?<!\w)\w+_kernel_(?:cuda|impl)\b)")
_MANGLED = re.compile(r"(\d+)")
_TELLS_LITTLE = frozenset(
    {
        *("elementwise_kernel", "vectorized_elementwise_kernel", "unrolled_elementwise_kernel", "reduce_kernel"),
        *("index_elementwise_kernel", "multi_tensor_apply_kernel", "Kernel", "Kernel2"),
    }
)
_SHELLS = frozenset({"Kernel", "Kernel2", "device_kernel"})
"""Templates of CUTLASS around what is computed."""
_CUTLASS = re.compile(r"\bcutlass_\w+|ImplicitGemm[A-Z][a-z]+|GemmUniversal")
_MOST_NAME = 4096


@lru_cache(maxsize=4096)
def short_kernel(name: str) -> str:
    """`vectorized_elementwise_kernel (CUDAFunctor_add)` for the name that a profiler wrote; others stay as they are."""
    name = name[:_MOST_NAME]
    if name.startswith("_Z"):
        return _demangled(name)
    bare, before = name.replace("(anonymous namespace)::", "").replace("->", ""), ""
    while bare != before:
        before, bare = bare, _TEMPLATES.sub("", bare)
    bare = bare.split("(", 1)[0].removeprefix("void ").strip()
    base = bare.rsplit("::", 1)[-1].strip() or name
    if base in _SHELLS and (inside := _CUTLASS.search(name)):
        return inside[0]
    if base in _TELLS_LITTLE and (found := _FUNCTOR.search(name)):
        return f"{base} ({found[1]})"
    return base if "(" in name or "::" in name else name


def _demangled(name: str) -> str:
    """The last of the identifiers that a mangled C++ name begins with."""
    at, found = 3 if name[2:3] == "N" else 2, ""
    while (number := _MANGLED.match(name, at)) is not None:
        size = int(number[1])
        found = name[number.end() : number.end() + size]
        at = number.end() + size
    if found in _SHELLS and (inside := _CUTLASS.search(name, at)):
        return inside[0]
    return found or name
