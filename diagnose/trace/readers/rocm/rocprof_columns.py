"""The kind of table that a CSV of rocprof, rocprofv2 or rocprofv3 is, by its header.

Every generation spells its columns differently (`BeginNs`, `Start_Timestamp`; `LDS_Block_Size`, `Lds_Block_Size`), so
headers are compared without case and punctuation.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Kind(enum.Enum):
    """The tables that are read, and those that are recognised."""

    KERNELS = "kernels"
    COPIES = "copies"
    CALLS = "calls"
    AGENTS = "agents"
    OTHER = "other"


@dataclass(frozen=True)
class Header:
    """The meaning of a CSV's columns."""

    kind: Kind
    columns: Mapping[str, int]
    """The position of each column, by its plain name."""
    counters: tuple[str, ...] = ()
    """Columns of hardware counters in a table of kernels."""
    sentence: str = ""
    """The kind of the file, where it is no timeline."""

    def place(self, *names: str) -> int | None:
        """Return the index of the first of these columns that the table has."""
        return next((self.columns[name] for name in names if name in self.columns), None)


BEGIN = ("starttimestamp", "beginns")
END = ("endtimestamp", "endns")

_NO_TIMES = "give the trace CSVs of the run (kernel_trace, hip_api_trace, memory_copy_trace) or its results.db"
_COUNTERS = f"holds hardware counters (rocprof), for which kernels are run one by one: no timeline; {_NO_TIMES}"
_SENTENCES: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(columns.split()), sentence)
    for columns, sentence in (
        ("countername countervalue", _COUNTERS),
        ("name calls totaldurationns", f"holds statistics of rocprof: sums over the run, not a timeline; {_NO_TIMES}"),
        ("sampletimestamp execmask", f"holds program-counter samples of rocprofv3, not a timeline; {_NO_TIMES}"),
        ("operation allocflags", f"holds scratch allocations of rocprofv3, without any device work; {_NO_TIMES}"),
        ("operation allocationsize", f"holds allocations of rocprofv3, without any device work; {_NO_TIMES}"),
        ("workloadname gpuarch", f"describes the machine of a rocprof-compute run, not a timeline; {_NO_TIMES}"),
    )
)
_ONLY_AGENTS = f"lists the processors of a rocprofv3 run, not what they did; {_NO_TIMES}"

_WORDS = """
index dispatchid kind guid kernelname kernelid kernelrename gpuid agentid queueid queueindex streamid correlationid
pid tid processid threadid grd wgr gridsize gridsizex gridsizey gridsizez workgroupsize workgroupsizex workgroupsizey
workgroupsizez lds ldsperworkgroup ldsblocksize scr scratchperworkitem scratchsize privatesegmentsize groupsegmentsize
archvgpr vgprcount accumvgpr accumvgprcount sgpr sgprcount wavesize sig obj
dispatchns beginns endns completens durationns duration starttimestamp endtimestamp
"""
_KNOWN = frozenset(_WORDS.split())
"""The columns that any generation writes of a kernel; others are hardware counters."""

_ROCPROF_1 = """
index kernelname gpuid queueid queueindex pid tid grd wgr lds scr archvgpr accumvgpr sgpr wavesize sig obj
dispatchns beginns endns completens durationns
"""
_HEADERLESS = tuple(_ROCPROF_1.split())
"""The columns of rocprof 1's results.csv, which some versions write without their names."""


def header_of(row: Sequence[str]) -> Header | None:
    """The meaning of a CSV's first row; None for a table that none of the three wrote."""
    places = {plain(name): place for place, name in reversed(list(enumerate(row)))}
    there = places.keys()
    for columns, sentence in _SENTENCES:
        if columns <= there:
            return Header(Kind.OTHER, places, sentence=sentence)
    if {"nodeid", "agenttype"} <= there or {"nodeid", "gpuid", "vendorname"} <= there:
        return Header(Kind.AGENTS, places, sentence=_ONLY_AGENTS)
    timed = any(name in there for name in BEGIN) and any(name in there for name in END)
    if not timed:
        return None
    if "kernelname" in there:
        return Header(Kind.KERNELS, places, tuple(name for name in row if name and plain(name) not in _KNOWN))
    if "direction" in there:
        return Header(Kind.COPIES, places)
    if "function" in there:
        return Header(Kind.CALLS, places)
    return None


def headerless(row: Sequence[str]) -> Header | None:
    """The meaning of the columns where a first row is a kernel of rocprof 1 already."""
    if len(row) not in (len(_HEADERLESS), len(_HEADERLESS) - 1):
        return None
    places = {name: place for place, name in enumerate(_HEADERLESS[: len(row)])}
    numbers = ("index", "gpuid", "queueid", "pid", "tid", "dispatchns", "beginns", "endns", "completens")
    if not all(row[places[name]].strip().isdecimal() for name in numbers) or not row[places["obj"]].startswith("0x"):
        return None
    return Header(Kind.KERNELS, places)


def plain(name: str) -> str:
    """A column's name without case and punctuation: `LDS_Block_Size` is `ldsblocksize`, `gpu-id` is `gpuid`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
