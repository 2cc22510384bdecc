"""Pieces of memory and segments of an allocator against a plain reckoning, and against real allocators' own totals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from allocating import ALLOC, FREE, NONE, RETURN, TAKE, Event, blocks, history, recorded
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.memory.allocations import pieces
from diagnose.measure.memory.peak import memory_peak
from diagnose.measure.memory.segment_layout import layout_at
from diagnose.measure.memory.usage import ALLOCATED, main_memory, memory_use
from diagnose.model import MemoryPeak
from diagnose.report.sections.memory import memory_lines
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import Blocks, BlockState, Counters, MemoryAction, MemoryEvents, Segments

ROOT = Path(__file__).resolve().parents[4] / "shared" / "traces"
SNAPSHOTS = sorted(path for path in ROOT.rglob("*.pickle") if "malformed" not in str(path)) if ROOT.is_dir() else []
TIMELINE = ROOT / "facebookresearch__HolisticTraceAnalysis/tests/data/memory_analysis/memory_timeline.raw.gz"
RECORDED = Path(__file__).parents[2] / "recordings"
PROFILED = ROOT / "facebookresearch__HolisticTraceAnalysis/tests/data/df_index_resolver/df_index_resolver.json.gz"


@given(recorded())
def test_the_pieces_are_what_was_held_after_each_event(given_: tuple[Trace, list[dict[int, int]], bool]) -> None:
    trace, states, is_whole = given_
    held = pieces(trace, 0)
    total = held.total()
    # Of what was taken and given back before the ring began, or was not given back by the allocator, nothing is told.
    for place, state in zip(range(-1, held.events), states, strict=True):
        there = held.held_at(place)
        told = dict(zip(held.address[there].tolist(), held.size_bytes[there].tolist(), strict=True))
        if is_whole:
            assert told == state
        assert told.items() <= state.items() or _returning(trace, place, told, state)
        assert int(total[place + 1]) == sum(told.values())
    assert int(total[-1]) == sum(states[-1].values())


def _returning(trace: Trace, place: int, told: dict[int, int], state: dict[int, int]) -> bool:
    """Whether the ring begins between the request to free a piece and its return: it then counts until then."""
    requests = bool((trace.memory.action == MemoryAction.FREE_REQUESTED).any())
    return not requests and all(state.get(address, size) == size for address, size in told.items()) and place < 1


@given(recorded())
def test_categories_parts_and_timeline_sum_to_what_is_held(given_: tuple[Trace, list[dict[int, int]], bool]) -> None:
    trace, states, _ = given_
    peak = memory_peak(trace, 0, NONE)
    if peak is None:
        assert not any(states)
        return
    assert sum(peak.categories.values()) == sum(part.held_bytes for part in peak.parts) == peak.held_bytes
    most = int(pieces(trace, 0).total().max())
    assert 0.999 * most <= peak.held_bytes <= most  # a later moment that comes as near is better known
    if peak.timeline is not None:
        moments = [sum(sizes) for sizes in zip(*peak.timeline.categories.values(), strict=True)]
        assert max(moments, default=0) == max(pieces(trace, 0).total()[1:].tolist())


@given(st.data())
def test_the_layout_is_that_of_the_segments_at_each_moment(data: st.DataObject) -> None:
    segments: dict[int, int] = {}
    held: dict[int, int] = {}
    events: list[Event] = []
    expected: list[tuple[int, int]] = []

    def note(event: Event) -> None:
        events.append(event)
        used = {start: sum(held.get(start + at, 0) for at in (0, 500)) for start in segments}
        fragments = sum(size - used[start] for start, size in segments.items() if used[start])
        expected.append((sum(segments.values()), fragments))

    for _ in range(data.draw(st.integers(1, 30))):
        empty = [start for start in segments if start not in held and start + 500 not in held]
        spots = [start + at for start in segments for at in (0, 500) if start + at not in held]
        kind = data.draw(st.sampled_from(("take", "return", "alloc", "free")))
        if kind == "return" and empty:
            start = data.draw(st.sampled_from(empty))
            note((RETURN, start, segments.pop(start)))
        elif kind == "alloc" and spots:
            address = data.draw(st.sampled_from(spots))
            held[address] = data.draw(st.integers(1, 500))
            note((ALLOC, address, held[address]))
        elif kind == "free" and held:
            address = data.draw(st.sampled_from(sorted(held)))
            note((FREE, address, held.pop(address)))
        else:
            start = 10_000 * len(events)
            segments[start] = 1000
            note((TAKE, start, 1000))
    if not segments:
        return
    table = {"address": list(segments), "size_bytes": list(segments.values()), "device": [0] * len(segments)}
    trace = Trace(source="", memory=history(events), segments=Segments.build(table), blocks=blocks(held))
    known = pieces(trace, 0)
    for place, figures in enumerate(expected):
        layout = layout_at(trace, 0, known, place)
        assert layout is not None
        assert (layout.reserved_bytes, layout.fragments_bytes) == figures


def test_what_was_held_before_a_profile_follows_from_the_allocators_own_totals() -> None:
    rows = {"time_ns": [0, 1, 2], "name": [0, 0, 0], "device": [0, 0, 0], "value": [1010, 1000, 1005]}
    events = history([(ALLOC, 1, 10), (FREE, 1, 10), (ALLOC, 2, 5)])
    trace = Trace(source="", memory=events, names=(ALLOCATED,), counters=Counters.build(rows))
    assert pieces(trace, 0).total().tolist() == [1000, 1010, 1000, 1005]


def test_events_of_the_host_are_none_of_a_device() -> None:
    events = MemoryEvents.build(
        {"time_ns": [0, 1], "action": [ALLOC, ALLOC], "address": [1, 2], "size_bytes": [10, 7], "device": [0, -1]}
    )
    trace = Trace(source="", memory=events)
    assert pieces(trace, 0).total().tolist() == [0, 10]
    assert pieces(trace, -1).total().tolist() == [0, 7]


@given(recorded())
def test_a_peak_survives_the_journal(given_: tuple[Trace, list[dict[int, int]], bool]) -> None:
    peak = memory_peak(given_[0], 0, NONE)
    assert msgspec.json.decode(msgspec.json.encode(peak), type=MemoryPeak | None) == peak


# -- recordings of other people ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not SNAPSHOTS, reason="no collection of public traces lies beside the repository")
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_real_snapshots_sum_to_what_their_allocators_hold(path: Path) -> None:
    (trace,) = open_traces([path])
    device = main_memory(trace)
    mine = trace.blocks.where((trace.blocks.device == device) & (trace.blocks.state == BlockState.HELD))
    held = pieces(trace, device)
    assert int(held.total()[-1]) == int(mine.requested_bytes.sum())
    assert held.total().min() >= 0
    peak = Measures(trace).memory_peak
    assert peak is not None
    assert sum(peak.categories.values()) == peak.held_bytes >= int(held.total().max() * 0.999)


@pytest.mark.skipif(not PROFILED.exists(), reason="no collection of public traces lies beside the repository")
def test_a_real_profile_sums_to_the_allocators_totals_at_each_instant() -> None:
    (trace,) = open_traces([PROFILED])
    device = main_memory(trace)
    held = pieces(trace, device)
    time_ns = trace.memory.time_ns[held.rows]
    last = np.append(np.diff(time_ns) > 0, True)  # of events at the same time, the counter has the last
    own = memory_use(trace, device).allocated.at(time_ns)
    assert len(own) > 20_000
    assert (held.total()[1:][last] == own[last]).all()


@pytest.mark.skipif(not TIMELINE.exists(), reason="no collection of public traces lies beside the repository")
def test_a_real_timeline_names_its_categories() -> None:
    peak = Measures(open_traces([TIMELINE])[0]).memory_peak
    assert peak is not None
    assert max(peak.categories, key=lambda name: peak.categories[name]) == "activations"
    assert sum(peak.categories.values()) == peak.held_bytes


def test_a_real_allocators_totals_after_each_operation() -> None:
    """Taken and given back at random on an H200 (benchmarks/out_of_memory.py, torch 2.11): held and reserved bytes."""
    (trace,) = open_traces([RECORDED / "allocator_h200.pickle.gz"])
    own: list[list[int]] = json.loads(gzip.decompress((RECORDED / "allocator_h200.json.gz").read_bytes()))
    held = pieces(trace, 0)
    action = trace.memory.action[held.rows]
    ends = np.flatnonzero((action == ALLOC) | (action == FREE))
    assert len(ends) == len(own) == 3000
    assert held.total()[1:][ends].tolist() == [requested for requested, _ in own]
    for number in range(0, 3000, 100):
        place = int(ends[number])
        while place + 1 < held.events and action[place + 1] == RETURN:
            place += 1  # the program emptied the cache after it
        layout = layout_at(trace, 0, held, place)
        assert layout is not None
        assert layout.reserved_bytes == own[number][1]


WILD = st.sampled_from([-(1 << 63), -(1 << 62), -1, 0, 1, 512, 4096, 1 << 40, 1 << 62, (1 << 63) - 1])


@given(st.data())
def test_whatever_a_file_claims_there_is_a_peak_or_none(data: st.DataObject) -> None:
    count, held = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 5))

    def wild(length: int) -> list[int]:
        return data.draw(st.lists(WILD, min_size=length, max_size=length))

    actions = data.draw(st.lists(st.sampled_from(list(MemoryAction)), min_size=count, max_size=count))
    memory = MemoryEvents.build(
        {"time_ns": wild(count), "action": actions, "address": wild(count), "size_bytes": wild(count)}
    )
    table = Blocks.build({"address": wild(held), "requested_bytes": wild(held), "state": [BlockState.HELD] * held})
    segments = Segments.build(
        {"address": wild(held), "size_bytes": wild(held), "expandable": [at % 2 for at in range(held)]}
    )
    trace = Trace(source="", memory=memory.sorted_by_start(), blocks=table, segments=segments)
    with np.errstate(over="ignore"):
        peak = Measures(trace).memory_peak
    if peak is not None:
        for width in (40, 100):
            assert all(len(line.plain) <= width for line in memory_lines(peak, None, width))
