"""What memory holds at its peak: what each piece serves as, who asked for it, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from allocating import ALLOC, FREE, LACK, MIB, NONE, Event, blocks, history
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.memory.categories import CATEGORIES
from diagnose.measure.memory.peak import BUCKETS, memory_peak, timeline_of
from diagnose.measure.memory.phases import TrainingPhase, phase_of_stack
from diagnose.model import Facts, MemoryPeak
from diagnose.plugins import load_rules
from diagnose.rule import Claim
from diagnose.trace import StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import MISSING, MemoryCategory, Segments

TORCH = "/x/site-packages/torch"
CALL = StackFrame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl", owned=False)
MAIN = StackFrame("train.py", 40, "main")
STACKS = {
    "linear": (StackFrame("model.py", 7, "forward"), CALL, MAIN),
    "head": (StackFrame("model.py", 9, "forward"), CALL, MAIN),
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
        return Trace(source="", **{"stacks": tuple(STACKS.values()), **known, **more})

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


def test_layers_half_as_large_as_logits_are_activations() -> None:
    """More of them than the loss asks for come from one line; the head's output is one."""
    run = Training()
    for address in (10, 11, 12):
        run.take(address, 32, "linear")
    run.take(13, 64, "head")
    run.take(14, 64, "loss")
    run.take(15, 1, "begins")
    found = sizes(memory_peak(run.trace(), 0, NONE))
    assert (found["activations"], found["logits"]) == (96, 128)


def test_layers_half_as_large_as_logits_are_told_without_a_history_too() -> None:
    run = Training()
    run.held = {10: 32 * MIB, 11: 32 * MIB, 12: 32 * MIB, 13: 64 * MIB, 14: 64 * MIB}
    stacks = [NAMES.index(name) for name in ("linear", "linear", "linear", "head", "loss")]
    found = sizes(memory_peak(run.trace(blocks=blocks(run.held, stack=stacks)), 0, NONE))
    assert (found["activations"], found["logits"]) == (96, 128)


@pytest.mark.parametrize(("built", "left"), [("built", 64), (None, 0)])
def test_what_steps_left_while_nobody_noted_is_told_by_its_size(built: str | None, left: int) -> None:
    """Only where the model's own was noted, and of no size of its own."""
    run = Training()
    run.held = {10: 32 * MIB, 11: 32 * MIB, 12: 32 * MIB, 13: 5 * MIB, 14: 5 * MIB, 15: 7 * MIB}
    stacks = [NAMES.index(name) if name else -1 for name in ("linear", None, None, built, None, None)]
    found = sizes(memory_peak(run.trace(blocks=blocks(run.held, stack=stacks)), 0, NONE))
    assert found.get("left by earlier steps", 0) == left
    assert found["activations"] == 32
    assert found["other"] == sum((5, 5, 7)) - (5 if built else 0) + 64 - left


def test_the_watcher_of_a_run_is_no_line_of_the_programs() -> None:
    """It stands around calls of the program's, in a folder that need not be one of installed packages."""
    watched = (StackFrame("/home/me/diagnose/diagnose/collect/inside/blocks.py", 92, "watched"), *STACKS["linear"])
    run = Training()
    run.take(2, 8, "linear")
    run.take(3, 1, "begins")
    stacks = tuple(watched if name == "linear" else stack for name, stack in STACKS.items())
    peak = memory_peak(run.trace(stacks=stacks), 0, NONE)
    assert peak is not None
    (layer,) = [part for part in peak.parts if part.category == "activations"]
    assert layer.place is not None and layer.place.file == "model.py"


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


@pytest.mark.parametrize(("segment_mib", "reserved"), [(96, 96 * MIB), (16, None)])
def test_segments_that_hold_less_than_the_history_says_are_not_believed(segment_mib: int, reserved: int | None) -> None:
    segments = Segments.build({"address": [0], "size_bytes": [segment_mib * MIB], "device": [0]})
    held = blocks({1: 5 * MIB, 3: 64 * MIB})
    found = memory_peak(Trace(source="", blocks=held, segments=segments), 0, NONE)
    assert found is not None
    assert (found.held_bytes, found.reserved_bytes) == (69 * MIB, reserved)


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


def test_memory_of_the_host_beside_the_work_of_a_device_is_none_of_the_devices() -> None:
    step = profiled(2, 5.5, 10.5)
    on_host = replace(step, memory=replace(step.memory, device=np.full(3, MISSING, np.int32)))
    assert Measures(drawn("gpu : kkk\nstep:    |")).trace.has_device
    working = replace(on_host, device=drawn("gpu : kkk\nstep:    |").device)
    assert memory_peak(on_host, 0, NONE) is not None, "without a device nobody says whose it is"
    assert memory_peak(working, 0, NONE) is None


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
