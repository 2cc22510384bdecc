"""Takes captures: each in a process of its own, as many side by side as fit, each once in a session.

Nothing is timed in a capture, so that several may share a device; never one beside what is timed. Some are begun early,
beside other processes that start (`begin`): before anything is measured their first steps have been captured, and what
takes longer, or has no room for its steps yet, stands still until its turn (`rest`). To start takes longer than those
steps, and a process that has not begun them holds little of the device. One that lacked memory beside others, or failed
there, runs again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.trial.gates.capture_pause import ask_to_stand, let_go_on, stands, stop
from diagnose.trial.gates.capture_plan import CaptureRequest
from diagnose.trial.gates.captures import Capture, read_capture
from diagnose.trial.gates.trajectory import Curve, read_curve
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.capacity import GROWTH, Memory, died_of_memory, fitting, room_to_start, standing_share
from diagnose.trial.process.host_memory import free_bytes
from diagnose.trial.process.makespan import Process, makespan_ns
from diagnose.trial.process.process_group import Group, end_all
from diagnose.trial.schedule import EARLY_MORE_NS, EARLY_TIMES, Deadline

_DETERMINISTIC = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Captures that share the cores must not spin on them while they wait for their own threads.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
# A reference is made operator by operator; what is compiled would be out of its reach.
_EAGER = {"TORCHDYNAMO_DISABLE": "1"}
_HOST_SHARE = 0.5
"""The share of the host's free memory that a reference may take for tensors that its device has no room for. Chosen,
not measured."""
_IN_FLOAT32 = 1.4
"""The memory of a reference in float32, as a multiple of the program's: what is in a 16-bit format doubles, the rest
stays. Chosen, not measured."""
_GAVE_NONE = "the program gave no numbers"
_LACK = "there was too little memory for the program under the gate"


@dataclass
class _Running:
    """A capture that is being taken."""

    wanted: CaptureRequest
    folder: Path
    group: Group
    began_ns: int = field(default_factory=lambda: time.monotonic_ns())
    stopped: bool = False
    """Whether the capture is paused."""
    waits: bool = False
    """Whether it was asked at its start to pause before its first step."""


@dataclass
class CaptureRunner:
    """Captures programs, and keeps each capture by the program's root."""

    workplace: Workplace
    limit_ns: int
    """The time limit of one capture, from its start to its end."""
    deadline: Deadline = field(default_factory=Deadline)
    memory: Memory = field(default_factory=Memory)
    """The memory of one process of the program."""
    compiling: Collection[Path] = frozenset()
    """Programs whose start compiles something, by root."""
    peaks: dict[Path, int] = field(default_factory=dict)
    """The peak memory, in bytes, of programs that a trial has seen, by root."""
    make_room: Callable[[], bool] = lambda: False
    """Ends captures that were begun early, for lack of memory; whether there were any."""
    waited_ns: int = 0
    """The time spent waiting for captures that were begun early, before something was measured."""
    started: int = 0
    """Processes so far."""
    _taken: dict[tuple[Path, str], Capture | Curve | str] = field(default_factory=dict)
    _begun: list[_Running] = field(default_factory=list)
    """The captures that were begun early and have not ended."""

    def begin(self, wanted: Sequence[CaptureRequest], beside: Sequence[float]) -> None:
        """Start what fits beside processes with these shares of the memory that was seen, the first ones first."""
        for one, waits in self._early(wanted, beside):
            begun = _Running(one, *self._start(one), waits=waits)
            self._begun.append(begun)
            begun.group.give_way()  # to the arms, whose start others wait for
            if waits:
                self._ask_to_stand(begun)

    def rest(self, limit_ns: int) -> None:
        """Wait for the first steps of what was begun, but no longer than this; what goes on then stands still.

        Only between two steps: a process stopped anywhere may hold a lock that others wait for. One that does not get
        there is ended.
        """
        began_ns = time.monotonic_ns()
        begun = [one for one in self._begun if not one.stopped]
        going = [one for one in begun if not one.waits]
        while going:
            done = self._first_to_end(going, began_ns + limit_ns)
            if not done.group.exited:
                break
            for some in (going, begun, self._begun):
                some.remove(done)
            taken = self._finish(done.wanted, done.folder, done.group)
            if not isinstance(taken, str):
                self._taken[done.wanted.key] = taken
        for one in going:
            self._ask_to_stand(one)
        asked_ns = time.monotonic_ns()
        for one in begun:
            first_step_ns = one.began_ns + round(EARLY_TIMES * (began_ns - one.began_ns))
            if self._stands(one, max(first_step_ns, asked_ns) + EARLY_MORE_NS):
                self._stop(one)
                one.stopped = True
            else:
                self._begun.remove(one)
                one.group.end()
        self.waited_ns += time.monotonic_ns() - began_ns

    def drop(self) -> None:
        """End what was begun and turned out not to be needed."""
        begun, self._begun = self._begun, []
        end_all(one.group for one in begun)

    def broken_by(self, original: Path, patched: Path) -> str | None:
        """Return how the program at `patched` failed in a capture that the one at `original` came through; None: it did
        not.

        Programs are told by their roots. What lacked memory or time is no failure of the program.
        """
        for (root, name), taken in self._taken.items():
            failed = root == patched and isinstance(taken, str) and taken.startswith(_GAVE_NONE)
            if failed and not isinstance(self._taken.get((original, name), ""), str):
                return str(taken)
        return None

    def has_room(self, beside: Sequence[float]) -> bool:
        """Whether a capture may start beside processes with these shares of the memory that was seen."""
        return room_to_start(self.memory, [*beside, *self.shares_begun(), standing_share(self.memory) or 2.0])

    def shares_begun(self) -> list[float]:
        """The memory that captures hold which were begun, as shares of what was seen of one process."""
        return [self._share(one.wanted, waits=one.waits) for one in self._begun]

    def shares_of(self, wanted: Sequence[CaptureRequest]) -> list[float]:
        """The memory that what has not been captured of it, or begun, would need to start early, as shares of what was
        seen.
        """
        begun = {one.wanted.key for one in self._begun}
        missing = [one for one in wanted if one.key not in begun and self._key(one) not in self._taken]
        return [self._share(one, waits=True) for one in missing]

    def share_of(self, root: Path, times: float) -> float:
        """Return the memory that a program needs if it needs `times` its own peak, as a multiple of the as-found
        program's peak; `times` where its peak is unknown.
        """
        peak = self.peaks.get(root)
        return times * peak / self.memory.peak_bytes if peak and self.memory.peak_bytes else times

    def expected_ns(
        self,
        wanted: Sequence[CaptureRequest],
        process: Callable[[CaptureRequest, float], Process],
        beside: Sequence[float] | None = None,
    ) -> int:
        """Return how long it will take to capture what is not there of it; `process` says what to expect of one with a
        share of the memory that was seen. With `beside`, what fits starts beside processes with these shares, which
        start anyway."""
        missing = [one for one in wanted if self._key(one) not in self._taken]
        begun = {one.wanted.key for one in self._begun}
        early = [one for one in missing if one.key in begun]
        early += [] if beside is None else [one for one, _ in self._early(missing, beside)]
        steps_ns = sum(process(one, self._share(one)).steps_ns for one in early)
        late = [process(one, self._share(one)) for one in self._longest_first(missing) if one not in early]
        return steps_ns + makespan_ns(late, self.memory)

    def _early(self, wanted: Sequence[CaptureRequest], beside: Sequence[float]) -> list[tuple[CaptureRequest, bool]]:
        """Return what is not there of it and fits beside others, each with whether it stands before its first step."""
        found: list[tuple[CaptureRequest, bool]] = []
        shares = [*beside, *self.shares_begun()]
        begun = {one.wanted.key for one in self._begun}
        for one in wanted:
            if one.key in begun or self._key(one) in self._taken:
                continue
            # One that takes long would keep the others waiting.
            for waits in [True] if one.rests else [False, True]:
                share = self._share(one, waits=waits)
                if room_to_start(self.memory, [*shares, share]):
                    shares.append(share)
                    found.append((one, waits))
                    break
        return found

    def _longest_first(self, wanted: Sequence[CaptureRequest]) -> list[CaptureRequest]:
        """Return captures in the order to start them: what compiles starts longest, and a reference runs longest."""
        return sorted(wanted, key=lambda one: (one.exact or one.program.root not in self.compiling, not one.exact))

    def _key(self, wanted: CaptureRequest) -> tuple[Path, str]:
        """Return the key under which a capture is kept that says what this one would."""
        return wanted.key

    def _share(self, wanted: CaptureRequest, *, waits: bool = False) -> float:
        """The memory that a capture needs, as a share of what was seen: a reference is in a wide format, and what is
        taken down lies on the host. `waits`: while it stands before its first step.
        """
        if waits and (standing := standing_share(self.memory)) is not None:
            return standing * (2.0 if wanted.in_float64 else 1.0)
        on_host = self.memory.device_bytes is None
        if wanted.of_luck and wanted.program.root in self.peaks:
            return self.share_of(wanted.program.root, GROWTH)  # it runs as it did in its trial
        if wanted.in_float64 or (on_host and not wanted.of_luck):
            return self.share_of(wanted.program.root, 2.0)
        return self.share_of(wanted.program.root, _IN_FLOAT32 if wanted.exact else 1.3)

    def _has_device_for(self, wanted: CaptureRequest) -> bool:
        """Whether the device has the memory for a capture that has it alone, as far as that is known.

        Only one that has not keeps tensors on the host: hooks on what is saved are nothing that every program bears.
        """
        memory = self.memory
        if self._taken.get(wanted.key) == _LACK:
            return False
        if memory.device_bytes is None or memory.reserved_bytes is None or memory.free_bytes is None:
            return True
        return self._share(wanted) * memory.reserved_bytes <= memory.free_bytes + memory.reserved_bytes

    def _take_all(self, missing: Sequence[CaptureRequest]) -> None:
        """Run captures as they fit side by side; one that lacked memory there is run again alone, then with what rests
        out of its way."""
        self._take(missing)
        for one in missing:
            if self._taken[one.key] == _LACK and len(missing) > 1:
                self._take([one])
            if self._taken[one.key] == _LACK and self.make_room():
                self._take([one])

    def _take(self, some: Sequence[CaptureRequest]) -> None:
        """Whenever one has ended, the first that fits beside the others takes its place."""
        keys = {one.key for one in some}
        early = {one.wanted.key for one in self._begun} & keys
        waiting, running = self._longest_first(some), list[_Running]()
        try:
            while waiting or running:
                if self.deadline.passed:
                    self._taken |= {one.key: f"the budget left no time for it ({one.name})" for one in waiting}
                    waiting.clear()
                for one in list(waiting):
                    begun = next((each for each in self._begun if each.wanted.key == one.key), None)
                    held = [self._share(each.wanted, waits=each.waits) for each in self._begun if each is not begun]
                    shares = [*held, *(self._share(each.wanted) for each in running), self._share(one)]
                    if not running or fitting(self.memory, shares) == len(shares):
                        waiting.remove(one)
                        running.append(self._resumed(begun) if begun else _Running(one, *self._start(one)))
                if running:
                    done = self._first_to_end(running, running[0].began_ns + self.limit_ns)
                    running.remove(done)
                    taken = self._finish(done.wanted, done.folder, done.group)
                    if isinstance(taken, str) and done.wanted.key in early and not self.deadline.passed:
                        early.remove(done.wanted.key)  # what failed beside others has one more try
                        waiting.append(done.wanted)
                    else:
                        self._taken[done.wanted.key] = taken
        finally:
            end_all(left.group for left in running)

    def _resumed(self, begun: _Running) -> _Running:
        """One that was begun, going on."""
        self._begun.remove(begun)
        self._let_go_on(begun)
        return replace(begun, began_ns=time.monotonic_ns(), stopped=False)

    def _first_to_end(self, running: Sequence[_Running], end_ns: int) -> _Running:
        """The first that ends by itself; the oldest when its time is up."""
        while True:
            ended = [one for one in running if one.group.exited]
            if ended or self.deadline.passed or time.monotonic_ns() >= end_ns:
                return (ended or running)[0]
            running[0].group.rest()

    def _stands(self, one: _Running, end_ns: int) -> bool:
        """Wait until it stands still, or has ended."""
        while not (one.group.exited or stands(one.folder)):
            if self.deadline.passed or time.monotonic_ns() >= end_ns:
                return False
            one.group.rest()
        return True

    def _ask_to_stand(self, one: _Running) -> None:
        ask_to_stand(one.folder)

    def _stop(self, one: _Running) -> None:
        stop(one.group, one.folder)

    def _let_go_on(self, one: _Running) -> None:
        let_go_on(one.group, one.folder)

    def _start(self, wanted: CaptureRequest) -> tuple[Path, Group]:
        place, program = self.workplace, wanted.program
        self.started += 1
        folder = place.folder / f"capture-{self.started}-{re.sub(r'[^a-z0-9-]', '-', wanted.name)}"
        settings: Mapping[str, str] = {} if wanted.of_luck else _DETERMINISTIC
        recipe = {"mode": "capture", "seed": 0, **wanted.recipe}
        if wanted.exact:
            settings = {**settings, **_EAGER}
            recipe["host_bytes"] = 0 if self._has_device_for(wanted) else round(_HOST_SHARE * free_bytes())
        return folder, place.start(program, recipe, folder, _PATIENT, settings)

    def _finish(self, wanted: CaptureRequest, folder: Path, group: Group) -> Capture | Curve | str:
        """The capture, or why there is none."""
        returncode = group.wait(0)
        words = group.last_words(4)
        group.end()
        capture = read_curve(folder) if wanted.of_luck else read_capture(folder)
        if returncode is None and self.deadline.passed:
            return f"the budget left no time to end it ({wanted.name})"
        if returncode is None:
            return f"the program did not finish its first steps in time ({wanted.name})"
        if capture is None or returncode != 0:
            if died_of_memory(words, returncode):
                return _LACK
            return f"{_GAVE_NONE} ({wanted.name}): {words or f'exit code {returncode}'}"
        return capture
