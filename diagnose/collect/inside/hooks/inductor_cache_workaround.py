"""Keeps out of torch's cache of compiled graphs what ends the process that writes it, or every later one that finds it.

Before 2.14, torch reads freed memory when it writes down that an output is an `_unsafe_view` of another tensor, which
a linear layer on three dimensions is, or one by `resize_` or with a tensor among its arguments (pytorch#184774). By
what lies there, the process that compiles ends by a segmentation fault, or the AOTAutograd cache keeps sizes that
nothing ever had: then each process that finds the entry ends with `shape '[94723676698103, …]' is invalid` out of
`gen_alias_from_base`, or by a segmentation fault. Graph breaks make such outputs.

Such an entry is refused, as torch itself refuses what it cannot cache: the graph is traced anew in every process, and
its kernels still come out of the cache. All other graphs stay cached: the whole cache switched off would have every
start of a program that compiles trace all of its graphs.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .sites import Sites

DIED = "broken cache entry"
"""The kind of site that is left where such an entry ended the program."""
REMEDY = (
    "torch before 2.14 crashes as it writes some compiled graphs into its cache, or writes wrong sizes, which end each "
    "process that finds them there (pytorch#184774): set TORCHINDUCTOR_AUTOGRAD_CACHE=0, or use torch 2.14 or later"
)
MENDED = (2, 14)
"""The first release that writes them down right: 2.11.0, 2.12.1 and 2.13.0 do not."""
_BROKEN = (
    "_unsafe_view_ViewMeta",
    "resize__ViewMeta",
    "slice_inverse_ViewMeta",
    "_make_dual_ViewMeta",
    "_nested_view_from_buffer_ViewMeta",
    "_nested_view_from_jagged_ViewMeta",
)
"""Descriptions of views that hold a reference to what is gone by the time it is read."""
_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_WRITES, _RESTORES = "_pickle_entry", "gen_alias_from_base"
"""The functions of torch that crash as they write an entry, and in which a wrong one shows."""


def refuse(torch: ModuleType) -> None:
    """Keep this process from writing such cache entries. Does nothing where torch writes them correctly."""
    if _release(str(torch.__version__)) >= MENDED:
        return
    views = getattr(getattr(torch, "_C", None), "_functionalization", None)
    for name in _BROKEN:
        kind = getattr(views, name, None)  # releases that cannot write them down at all have none
        if kind is not None:
            copyreg.pickle(kind, _refused)


def died_of_it(last_words: str) -> bool:
    """Whether the end of an error stream tells of such an entry: a traceback, or what faulthandler leaves."""
    if "Fatal Python error" in last_words:
        return _WRITES in last_words or _RESTORES in last_words
    return _RESTORES in last_words and "is invalid for input" in last_words


def ended_by_it() -> bool:
    """Return whether an exception of that kind ended the program. Call it at the interpreter's exit."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return isinstance(error, RuntimeError) and died_of_it(f"{_innermost(error)} {error}")


def note_it(sites: Sites) -> None:
    """Leave a record of such an entry, if that is how the program ends."""
    if ended_by_it():
        sites.add(DIED, "", 0, None, {})


def _innermost(error: BaseException) -> str:
    frames = list(_frames(error))
    return frames[-1].f_code.co_name if frames else ""


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _refused(view: Any) -> NoReturn:
    bypass = getattr(sys.modules.get(_CACHE), "BypassAOTAutogradCache", pickle.PicklingError)
    raise bypass(f"{type(view).__name__}: {REMEDY}")


def _release(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13)."""
    major, _, minor = version.partition(".")
    minor = minor.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else MENDED
