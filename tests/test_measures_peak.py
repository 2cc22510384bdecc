"""What memory holds at its peak: pieces and totals against a plain reckoning, and what each piece serves as."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.memory import ALLOCATED, main_memory, memory_use
from diagnose.measure.peak import BUCKETS, memory_peak, timeline_of
from diagnose.measure.peak_layout import layout_at
from diagnose.measure.piece_roles import CATEGORIES
from diagnose.measure.pieces import pieces
from diagnose.measure.training_phases import TrainingPhase, phase_of_stack
from diagnose.model import Facts, MemoryPeak
from diagnose.plugins import load_rules
from diagnose.report.memory import memory_lines
from diagnose.rule import Claim
from diagnose.trace import StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import Blocks, BlockState, Counters, MemoryAction, MemoryCategory, MemoryEvents, Segments

ROOT = Path(__file__).resolve().parents[2] / "shared" / "traces"
SNAPSHOTS = sorted(path for path in ROOT.rglob("*.pickle") if "malformed" not in str(path)) if ROOT.is_dir() else []
TIMELINE = ROOT / "facebookresearch__HolisticTraceAnalysis/tests/data/memory_analysis/memory_timeline.raw.gz"
RECORDED = Path(__file__).parent / "recordings"
PROFILED = ROOT / "facebookresearch__HolisticTraceAnalysis/tests/data/df_index_resolver/df_index_resolver.json.gz"

ALLOC, REQUESTED, FREE = MemoryAction.ALLOC, MemoryAction.FREE_REQUESTED, MemoryAction.FREE
TAKE, RETURN, LACK = MemoryAction.SEGMENT_ALLOC, MemoryAction.SEGMENT_FREE, MemoryAction.OUT_OF_MEMORY
MIB = 1 << 20
NONE = np.empty(0, np.int64)

Event = tuple[MemoryAction, int, int]


def history(events: Sequence[Event], **more: Any) -> MemoryEvents:
    action, address, size = zip(*events, strict=True) if events else ((), (), ())
    columns = {"time_ns": range(len(events)), "action": action, "address": address, "size_bytes": size}
    return MemoryEvents.build({**columns, "device": [0] * len(events), **more})


def blocks(held: dict[int, int], **more: Any) -> Blocks:
    count = len(held)
    columns = {"address": list(held), "size_bytes": list(held.values()), "requested_bytes": list(held.values())}
    return Blocks.build({**columns, "state": [BlockState.HELD] * count, "device": [0] * count, **more})


@st.composite
def recorded(draw: st.DrawFn) -> tuple[Trace, list[dict[int, int]], bool]:
    """A ring that lost its beginning, with the blocks at its end; what was held; whether it is whole."""
    held: dict[int, int] = {}
    events: list[Event] = []
    states: list[dict[int, int]] = [{}]
    for _ in range(draw(st.integers(0, 60))):
        if draw(st.booleans()) and held:
            address = draw(st.sampled_from(sorted(held)))
            size = held.pop(address)
            events.append((REQUESTED, address, size))
            states.append(dict(held))
            events.append((FREE, address, size))
        else:
            address = draw(st.integers(0, 12).filter(lambda one: one not in held))
            held[address] = draw(st.integers(1, 1000))
            events.append((ALLOC, address, held[address]))
        states.append(dict(held))
        if len(held) == 13:
            break
    lost = draw(st.integers(0, len(events)))
    trace = Trace(source="", memory=history(events[lost:]), blocks=blocks(held))
    return trace, states[lost:], lost == 0


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
    requests = bool((trace.memory.action == REQUESTED).any())
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


# -- what pieces serve as ---------------------------------------------------------------------------------------------

TORCH = "/x/site-packages/torch"
CALL = StackFrame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl", owned=False)
MAIN = StackFrame("train.py", 40, "main")
STACKS = {
    "linear": (StackFrame("model.py", 7, "forward"), CALL, MAIN),
    "loss": (StackFrame(f"{TORCH}/nn/functional.py", 3462, "cross_entropy", owned=False), MAIN),
    "batch": (MAIN,),
    "begins": (StackFrame(f"{TORCH}/autograd/__init__.py", 231, "_make_grads", owned=False), MAIN),
    "adam": (StackFrame(f"{TORCH}/optim/adamw.py", 120, "_init_group", owned=False), MAIN),
    "built": (StackFrame(f"{TORCH}/nn/modules/module.py", 900, "_apply", owned=False), MAIN),
    "again": (
        StackFrame("model.py", 7, "forward"),
        CALL,
        StackFrame(f"{TORCH}/utils/checkpoint.py", 1500, "recompute_fn", owned=False),
    ),
}
NAMES = list(STACKS)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("linear", TrainingPhase.FORWARD),
        ("loss", TrainingPhase.UNKNOWN),
        ("batch", TrainingPhase.UNKNOWN),
        ("begins", TrainingPhase.BACKWARD),
        ("again", TrainingPhase.BACKWARD),
        ("adam", TrainingPhase.OPTIMIZER),
    ],
)
def test_the_phase_of_a_stack(name: str, phase: TrainingPhase) -> None:
    assert phase_of_stack(STACKS[name]) is phase


def test_an_optimizer_that_runs_the_model_in_a_closure_is_at_the_model() -> None:
    step = StackFrame(f"{TORCH}/optim/lbfgs.py", 300, "step", owned=False)
    assert phase_of_stack((*STACKS["linear"][:2], step, MAIN)) is TrainingPhase.FORWARD


class Training:
    """A history that is written down call by call; every size is a number of MiB."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stacks: list[int] = []
        self.held: dict[int, int] = {}

    def take(self, address: int, mib: int, stack: str | None) -> None:
        self.held[address] = mib * MIB
        self._note((ALLOC, address, mib * MIB), stack)

    def give(self, *addresses: int) -> None:
        for address in addresses:
            self._note((FREE, address, self.held.pop(address)), None)

    def _note(self, event: Event, stack: str | None) -> None:
        self.events.append(event)
        self.stacks.append(NAMES.index(stack) if stack else -1)

    def trace(self, **more: Any) -> Trace:
        known = {"memory": history(self.events, stack=self.stacks), "blocks": blocks(self.held)}
        return Trace(source="", stacks=tuple(STACKS.values()), **{**known, **more})

    def step(self, collected: int | None = None) -> None:
        """Batch, two layers, the loss, the backward pass, the optimizer; an output may be `collected` for good."""
        self.take(1, 2, "batch")
        if collected is not None:
            self.take(collected, 100, "linear")
        self.take(2, 8, "linear")
        self.take(3, 3, "linear")
        self.give(3)
        self.take(4, 8, "linear")
        self.take(5, 64, "loss")
        self.take(6, 32, "linear")  # half as large as what the loss asked for
        self.take(7, 1, "begins")
        self.take(8, 64, None)
        self.give(5, 6)
        self.take(20, 5, None)
        self.give(8, 4, 2, 7)
        if 30 not in self.held:
            self.take(30, 10, "adam")
        self.take(31, 5, "adam")
        self.give(31, 20, 1)


def sizes(peak: MemoryPeak | None) -> dict[str, int]:
    assert peak is not None
    return {name: size // MIB for name, size in peak.categories.items()}


def test_what_a_step_holds_at_its_peak() -> None:
    run = Training()
    run.step()
    run.take(2, 1, "linear")
    run.give(2)
    # The peak: batch, two layers, logits three times with their gradient.
    peak = memory_peak(run.trace(), 0, NONE)
    assert sizes(peak) == {"inputs": 2, "activations": 16, "logits": 160, "temporaries": 1}


def test_gradients_and_state_are_told_by_what_outlives_their_phase() -> None:
    run = Training()
    run.step()
    run.take(40, 500, "adam")  # so that the peak lies in the optimizer
    run.give(40)
    run.held |= {50: 5 * MIB}  # held throughout, as large as a gradient
    before = memory_peak(run.trace(), 0, NONE)
    assert sizes(before) == {"parameters": 5, "optimizer state": 10, "temporaries": 500}


def test_what_an_earlier_step_leaves_is_told_from_what_this_one_needs() -> None:
    run = Training()
    for step in range(3):
        run.step(collected=60 + step)
    peak = memory_peak(run.trace(), 0, NONE)
    assert peak is not None
    assert sizes(peak)["left by earlier steps"] == 200
    lines = {part.place.line for part in peak.parts if part.place and part.category == "left by earlier steps"}
    assert lines == {7}


def test_what_was_left_before_the_recording_began_is_told_by_who_asked() -> None:
    run = Training()
    run.step()
    run.take(2, 1, "linear")
    run.give(2)
    run.held |= {80: 40 * MIB, 81: 3 * MIB}
    stacks = {80: NAMES.index("linear"), 81: NAMES.index("built")}
    known = blocks(run.held, stack=[stacks.get(address, -1) for address in run.held])
    found = sizes(memory_peak(run.trace(blocks=known), 0, NONE))
    assert (found["left by earlier steps"], found["parameters"]) == (40, 3)


def test_a_model_that_is_built_while_events_are_noted_has_parameters() -> None:
    run = Training()
    run.take(90, 7, "built")
    run.step()
    assert sizes(memory_peak(run.trace(), 0, NONE))["parameters"] == 7


def test_parts_name_line_phase_and_return() -> None:
    run = Training()
    run.step()
    peak = memory_peak(run.trace(), 0, NONE)
    assert peak is not None
    (layers,) = [part for part in peak.parts if part.category == "activations"]
    assert layers.place is not None
    assert (layers.place.file, layers.place.line, layers.pieces) == ("model.py", 7, 2)
    assert (layers.taken, layers.freed) == ("forward", "backward")
    (gradient,) = [part for part in peak.parts if part.category == "logits" and part.taken == "backward"]
    assert gradient.place is None


def test_known_addresses_go_before_guesses() -> None:
    run = Training()
    run.step()
    run.held |= {70: 7 * MIB, 71: 9 * MIB}
    roles = {70: MemoryCategory.PARAMETER, 71: MemoryCategory.OPTIMIZER_STATE}
    known = blocks(run.held, category=[roles.get(address, MemoryCategory.UNKNOWN) for address in run.held])
    found = sizes(memory_peak(run.trace(blocks=known), 0, NONE))
    assert (found["parameters"], found["optimizer state"]) == (7, 9)


def test_sizes_of_logits_that_are_known_otherwise() -> None:
    run = Training()
    run.take(2, 8, "linear")
    run.take(3, 8, "linear")
    run.take(4, 1, "begins")
    found = sizes(memory_peak(run.trace(), 0, np.asarray([8 * MIB])))
    assert found["logits"] == 16


def test_the_moment_without_room_goes_before_the_most_that_was_held() -> None:
    events = [(ALLOC, 1, 50), (FREE, 1, 50), (ALLOC, 2, 20), (LACK, -1, 70), (FREE, 2, 20)]
    peak = memory_peak(Trace(source="", memory=history(events), facts=Facts(device_memory_bytes=60)), 0, NONE)
    assert peak is not None
    assert (peak.held_bytes, peak.wanted_bytes, peak.capacity_bytes) == (20, 70, 60)


def test_blocks_alone_tell_who_holds_what() -> None:
    """As a live run leaves it that dies in its first step: no history, but who asked for what is held."""
    held = {1: 5 * MIB, 2: 8 * MIB, 3: 64 * MIB, 4: 3 * MIB}
    stacks = [NAMES.index(name) for name in ("built", "linear", "loss", "adam")]
    lack = history([(LACK, -1, 70 * MIB)])
    trace = Trace(source="", memory=lack, blocks=blocks(held, stack=stacks), stacks=tuple(STACKS.values()))
    found = memory_peak(trace, 0, NONE)
    assert sizes(found) == {"parameters": 5, "activations": 8, "logits": 64, "optimizer state": 3}
    assert found is not None
    assert found.wanted_bytes == 70 * MIB


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


def profiled(*taken_us: float) -> Trace:
    """Pieces taken at moments of a drawn step, by events that know no stack."""
    step = drawn(
        """
        host  : xxxx yy
        host  :  nn
        host 1:         BBBBB
        host 1:          DDD
        host 1:           n
        """,
        ops={
            "x": "aten::linear",
            "n": "aten::mm",
            "y": "aten::gelu",
            "B": "autograd::engine::evaluate_function: AddmmBackward0",
            "D": "AddmmBackward0",
        },
        unit_ns=1000,
    )
    events = [(ALLOC, at, 10) for at in range(len(taken_us))]
    return replace(step, memory=history(events, time_ns=[int(1000 * at) for at in taken_us]))


def test_without_stacks_operators_tell_who_asked() -> None:
    peak = Measures(profiled(2, 5.5, 10.5)).memory_peak
    assert peak is not None
    assert {part.by for part in peak.parts} == {"aten::linear", "aten::gelu", "AddmmBackward0"}


def test_between_operators_nobody_is_named() -> None:
    peak = Measures(profiled(4.5)).memory_peak
    assert peak is not None
    assert [part.by for part in peak.parts] == [None]


def test_nothing_recorded_is_no_peak() -> None:
    assert Measures(Trace(source="")).memory_peak is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=400), st.booleans())
def test_a_timeline_keeps_the_highest_moment_and_its_order(values: list[int], timed: bool) -> None:
    by_role = np.zeros((len(CATEGORIES), len(values)), np.int64)
    by_role[3] = values
    time_ns = np.arange(len(values)) * 7 if timed else np.full(len(values), -1)
    line = timeline_of(time_ns, by_role)
    shown = line.categories.get("activations", (0,))
    assert len(shown) <= BUCKETS
    assert max(shown) == max(values)
    assert (line.time_ns is not None) == timed
    if line.time_ns is not None:
        assert list(line.time_ns) == sorted(line.time_ns)


def test_a_leak_that_only_readings_show_has_the_lines_of_what_earlier_steps_left() -> None:
    rule = load_rules().rules["leaking-memory"]
    run = Training()
    for step in range(3):
        run.step(collected=60 + step)
    seen = run.trace()
    later = replace(seen.memory, time_ns=seen.memory.time_ns + 10**12)  # not in the counted steps
    read = next(trace for trace in rule.fires if len(trace.step_log) and trace.has_device)
    leak = replace(read, sites=(), memory=later, blocks=seen.blocks, stacks=seen.stacks)
    (claim,) = rule.check(Measures(leak))
    assert isinstance(claim, Claim)
    assert [(place.file, place.line, place.share) for place in claim.where] == [("model.py", 7, 1.0)]


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
