"""Captures that begin beside other processes: what is short is taken, what is long stands still; nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from diagnose.program import Program
from diagnose.trial.gates.capture_plan import CaptureRequest, bits, bits_again, exact, luck
from diagnose.trial.gates.capture_runner import _GAVE_NONE, _LACK, CaptureRunner
from diagnose.trial.gates.captures import Capture
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.units import NS_PER_S

GIB = 1 << 30
ROOMY = Memory(GIB, GIB, 99 * GIB, 100 * GIB, 1)
ROOT = Path("/copies/one")
ONE = Program(("train.py",), "script", ROOT / "train.py", ROOT, ROOT)
SHORT, AGAIN_BITS, (LONG,) = bits(ONE), bits_again(ONE), luck([ONE], 1, 50)


@dataclass
class Process:
    """Ends by itself unless it stands still, or never."""

    ends: bool
    diary: list[str] = field(default_factory=list)

    @property
    def exited(self) -> bool:
        return self.ends and self.diary[-1:] != ["pause"]

    def __getattr__(self, what: str) -> Any:
        return lambda: self.diary.append(what)


@dataclass
class Made(CaptureRunner):
    """Its processes are made up."""

    fails: list[str] = field(default_factory=list)
    """Captures whose first process gives no numbers."""
    why: str = "it failed"
    hangs: tuple[str, ...] = ()
    restless: tuple[str, ...] = ()
    """Captures that do not get to stand still."""
    processes: dict[str, Process] = field(default_factory=dict)

    def _start(self, wanted: CaptureRequest) -> tuple[Path, Any]:
        self.started += 1
        self.processes[wanted.name] = Process(wanted.name not in self.hangs)
        return Path(), self.processes[wanted.name]

    def _ask_to_stand(self, one: Any) -> None:
        one.group.ask()

    def _stands(self, one: Any, _end_ns: int) -> bool:
        return one.wanted.name not in self.restless

    def _stop(self, one: Any) -> None:
        one.group.pause()

    def _let_go_on(self, one: Any) -> None:
        one.group.resume()

    def _finish(self, wanted: CaptureRequest, _folder: Path, _group: Any) -> Capture | str:
        if wanted.name in self.fails:
            self.fails.remove(wanted.name)
            return self.why
        return Capture({}, {})

    def take(self, *some: CaptureRequest) -> list[object]:
        self._take_all(self._missing(some))
        return [self._taken[one.key] for one in some]

    def _missing(self, some: tuple[CaptureRequest, ...]) -> list[CaptureRequest]:
        return [one for one in some if one.key not in self._taken]


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(16)))


def made(**more: Any) -> Made:
    return Made(cast("Workplace", None), NS_PER_S, memory=ROOMY, **more)


def test_first_steps_are_there_before_anything_is_measured_and_long_captures_stand_still() -> None:
    recorder = made()
    recorder.begin([SHORT, AGAIN_BITS, LONG], [1.2, 1.4])
    recorder.rest(NS_PER_S)
    assert [recorder.processes[one.name].diary[-1:] for one in (AGAIN_BITS, LONG)] == [["pause"], ["pause"]]
    assert all(isinstance(one, Capture) for one in recorder.take(SHORT, LONG))
    assert recorder.processes[LONG.name].diary == ["give_way", "ask", "pause", "resume"]
    recorder.drop()
    assert recorder.processes[AGAIN_BITS.name].diary[-1] == "end"
    assert recorder.started == 3


def test_where_steps_have_no_room_processes_start_and_stand_before_the_first_one() -> None:
    """Of 100 GiB, two arms take 78; each capture needs 42 for its steps, and 5 to stand before them."""
    small_before_steps = Memory(None, 30 * GIB, 70 * GIB, 100 * GIB, 1, made_bytes=round(3.3 * GIB), made_host_bytes=1)
    recorder = made()
    recorder.memory = small_before_steps
    seeds = luck([ONE], 3, 50)
    recorder.begin([SHORT, *seeds], [1.2, 1.4])
    assert [recorder.processes[one.name].diary for one in (SHORT, *seeds)] == [["give_way", "ask"]] * 4
    recorder.rest(NS_PER_S)
    assert all(isinstance(one, Capture) for one in recorder.take(SHORT, *seeds))
    assert recorder.started == 4


def test_what_stands_before_its_steps_goes_on_when_they_have_room() -> None:
    recorder = made(hangs=("seed-0",))
    recorder.memory = Memory(None, 60 * GIB, 40 * GIB, 100 * GIB, 1, made_bytes=GIB, made_host_bytes=1)
    seeds = luck([ONE], 2, 50)
    recorder.begin(seeds, [])
    recorder.rest(NS_PER_S)
    first, second = (recorder.processes[one.name] for one in seeds)
    assert (first.diary, second.diary) == (["give_way", "ask", "pause"], ["give_way", "ask", "pause"])
    recorder.limit_ns = 0  # the one that hangs is ended, and its room is free
    recorder.take(*seeds)
    assert first.diary[3] == "resume"
    assert second.diary[3] == "resume"


def test_where_it_is_not_known_what_a_model_takes_a_capture_needs_room_for_its_steps() -> None:
    recorder = made()
    recorder.memory = Memory(None, 30 * GIB, 70 * GIB, 100 * GIB, 1)
    recorder.begin([SHORT, LONG], [1.2, 1.4])
    assert recorder.started == 0


def test_what_is_not_captured_in_time_stands_still_and_goes_on_at_the_gate() -> None:
    recorder = made(hangs=(SHORT.name,))
    recorder.begin([SHORT], [])
    recorder.rest(0)
    process = recorder.processes[SHORT.name]
    assert process.diary[-1] == "pause"
    process.ends = True
    (taken,) = recorder.take(SHORT)
    assert isinstance(taken, Capture)
    assert recorder.started == 1


def test_what_does_not_get_to_stand_still_is_ended_and_taken_at_the_gate() -> None:
    recorder = made(restless=(LONG.name,))
    recorder.begin([AGAIN_BITS, LONG], [])
    recorder.rest(NS_PER_S)
    assert recorder.processes[LONG.name].diary == ["give_way", "ask", "end"]
    assert recorder.processes[AGAIN_BITS.name].diary == ["give_way", "ask", "pause"]
    (taken,) = recorder.take(LONG)
    assert isinstance(taken, Capture)
    assert recorder.started == 3


def test_what_stands_already_is_not_waited_for_again() -> None:
    recorder = made(hangs=(SHORT.name,))
    recorder.begin([SHORT], [])
    recorder.rest(0)
    before_ns = recorder.waited_ns
    recorder.rest(100 * NS_PER_S)
    assert recorder.waited_ns - before_ns < 50 * NS_PER_S
    assert recorder.processes[SHORT.name].diary == ["give_way", "ask", "pause"]


def test_captures_that_stand_go_where_memory_runs_out() -> None:
    cleared: list[int] = []

    def make_room() -> bool:
        cleared.append(recorder.started)
        return True

    recorder = made(fails=["seed-0", "seed-0"], why=_LACK, make_room=make_room)
    assert all(isinstance(taken, Capture) for taken in recorder.take(*luck([ONE], 2, 50)))
    assert cleared == [3]  # alone it had lacked memory too
    assert recorder.started == 4


@pytest.mark.parametrize("one", [SHORT, LONG], ids=["short", "long"])
def test_what_fails_beside_others_is_taken_again_at_the_gate(one: CaptureRequest) -> None:
    recorder = made(fails=[one.name])
    recorder.begin([one], [])
    recorder.rest(NS_PER_S)
    (taken,) = recorder.take(one)
    assert isinstance(taken, Capture)
    assert recorder.started == 2


def test_what_fails_twice_has_failed() -> None:
    recorder = made(fails=[LONG.name, LONG.name])
    recorder.begin([LONG], [])
    recorder.rest(NS_PER_S)
    assert recorder.take(LONG) == ["it failed"]


def test_nothing_begins_without_room_and_nothing_twice() -> None:
    recorder = made()
    recorder.begin([SHORT], [50.0, 50.0])
    assert recorder.started == 0
    recorder.begin([SHORT], [])
    recorder.begin([SHORT], [])
    assert recorder.started == 1


@pytest.mark.parametrize(
    ("held_gib", "lacked", "has"),
    [(40, False, True), (55, False, False), (40, True, False)],
    ids=["twice what it holds fits", "twice does not", "it ran out before"],
)
def test_a_reference_keeps_tensors_on_the_host_only_where_its_device_is_too_small(
    held_gib: int, lacked: bool, has: bool
) -> None:
    seen = Memory(held_gib * GIB, held_gib * GIB, (100 - held_gib) * GIB, 100 * GIB, 1)
    runner, reference = Made(cast(Workplace, None), 1, memory=seen), exact(ONE)
    runner._taken |= {reference.key: _LACK} if lacked else {}
    assert runner._has_device_for(reference) is has


@pytest.mark.parametrize(("why", "broken"), [(f"{_GAVE_NONE} (bits): ValueError", True), (_LACK, False)])
def test_a_program_is_broken_that_gives_no_numbers_where_the_original_gave_some(why: str, broken: bool) -> None:
    other = replace(ONE, entry=Path("/copies/two/train.py"), root=Path("/copies/two"), cwd=Path("/copies/two"))
    recorder = made(why=why)
    recorder.take(SHORT)
    recorder.fails = [SHORT.name] * 2
    recorder.take(bits(other))
    assert recorder.broken_by(ROOT, other.root) == (why if broken else None)
    assert recorder.broken_by(other.root, ROOT) is None
    assert recorder.broken_by(Path("/copies/three"), other.root) is None, "of which nothing is known"
