"""One arm of a trial: a live copy of a program that runs blocks of steps on demand and rests in between.

The other side of the conversation is `diagnose.collect.inside.modes.ab_worker`. Every read has a limit; whatever goes
wrong ends as an `ArmFailed` that says how, with the program's last words.
"""

from __future__ import annotations

import contextlib
import enum
import json
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from diagnose.collect import environment
from diagnose.collect.inside.process.source_digest import digest_of
from diagnose.collect.records import TRACE
from diagnose.program import Program
from diagnose.program.rendezvous import held_port, with_own_port
from diagnose.trial.process.capacity import Memory, died_of_memory
from diagnose.trial.process.loader_drain import LoaderDrain, stocks_in
from diagnose.trial.process.process_group import Group, Groups
from diagnose.units import NS_PER_S, format_ns

_LET_REST = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400"}
"""NCCL's monitor ends a process whose watchdog seems stuck, which one that rests does."""
_TELL_OF_CRASHES = {"PYTHONFAULTHANDLER": "1"}
"""Else a process that a signal ends, a segmentation fault for example, says nothing at all."""
_PORTS = 4  # for a program that names several: its ranks seldom meet at more than one
_CHECK_S = 0.1  # how often a silent program is asked whether it still lives
_LONGER = 1.5  # what steps may take of a time that others took, and still end in time
_LAST_STEPS_NS = 20 * NS_PER_S  # from "the loop is over" to the exit of the process


class Trouble(enum.StrEnum):
    """How an arm can fail."""

    ENDED = "ended"
    """The program came to its own end: no failure of the fix."""
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out of memory"
    REFUSED = "refused"
    """A probe would mislead in this program."""


class ArmFailed(Exception):
    """An arm gave no answer. `steps` is how many steps it had done, where it could still say; else, of one that
    crashed or ran out of memory, how many at least: of a crash in its warm-up 0."""

    def __init__(self, trouble: Trouble, message: str, steps: int | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.steps = steps


@dataclass(frozen=True, slots=True)
class Ready:
    """An arm after its warm-up; `step_ns` is -1 where the warm-up was too short to tell."""

    steps: int
    step_ns: int
    memory: Memory
    started_ns: int
    """The time from the start of the process to the end of its warm-up."""
    left: Sequence[str] = ()
    """The parts that a probe has left as they are."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block as measured: of several ranks, as long as on the slowest."""

    steps: int
    total_ns: int
    input_ns: int
    """The time of the block inside the loader's `__next__`, on the rank that was there longest. Ranks that wait for
    each other take equally long, whichever of them waits for its loader."""
    memory: Memory = field(default_factory=Memory)
    steps_ns: Sequence[int] = ()
    """Each step by itself, as its host saw it, on the slowest rank."""

    @property
    def mean_ns(self) -> float:
        """The mean length of a step."""
        return self.total_ns / self.steps


@dataclass(frozen=True)
class Workplace:
    """The state that all processes of a trial share."""

    groups: Groups
    folder: Path
    """The folder in which they leave their files; copies of the program lie below it, so that the guard lets both be
    written."""
    python: str
    environment_of: Callable[[Program], dict[str, str]]
    """The environment in which a copy of the program runs."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Added to every recipe: what the guard protects, for example."""
    edited: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """Per copy, by its root: the files that an edit wrote. All ranks must run the same."""
    probed: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)
    """Per copy, by its root: `name`, `setting` and `step_ns` of the probe that changes its processes."""

    def start(
        self,
        program: Program,
        recipe: Mapping[str, Any],
        folder: Path,
        before: Mapping[str, str] | None = None,
        after: Mapping[str, str] | None = None,
    ) -> Group:
        """Start a copy under a recipe, its ranks at a place of their own; streams go to `folder`.

        Variables of `before` give way to the program's own, those of `after` do not.
        """
        variables = {**_TELL_OF_CRASHES, **(before or {}), **self.environment_of(program), **_LET_REST, **(after or {})}
        with contextlib.ExitStack() as held:
            ports = [held.enter_context(held_port()) for _ in range(_PORTS)]
            words, variables = with_own_port(program.command(self.python), variables, ports[0])
            room = held.enter_context(self.groups.place())
            whole = {**self.recipe, "ports": ports, "room": room, **recipe, "folder": str(folder)}
            group = self.groups.start(words, program.cwd, environment(whole, variables), folder / "program")
            group.keep_until_its_end(held.pop_all())
        return group


class Arm:
    """A live program. Use it as a context manager: leaving it ends the program's whole group."""

    _steps = 0
    """Taken so far, as its answers tell."""

    def __init__(self, workplace: Workplace, program: Program, name: str, warmup_steps: int) -> None:
        self.name = name
        self.folder = workplace.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        # A short path of its own: a socket's name may not be longer than about a hundred bytes.
        self._room = workplace.groups.place()
        address = str(Path(self._room.name) / "turns")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(1024)
        self._ranks: dict[int, _Rank] = {}
        self._stock = LoaderDrain(())
        self._started_ns = time.monotonic_ns()
        edited = list(workplace.edited.get(program.root, ()))
        self._sources = digest_of(edited)
        recipe = {"mode": "ab_worker", "socket": address, "warmup": warmup_steps, "sources": edited}
        if program.root in workplace.probed:
            recipe["probe"] = dict(workplace.probed[program.root])
        self._group = workplace.start(program, recipe, self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def ready(self, limit_ns: int) -> Ready:
        """Wait for the end of the warm-up, then let the arm rest."""
        end = self._started_ns + limit_ns
        self._meet(end)
        answers = self._answers("ready", end)
        self._stock = LoaderDrain.of(stocks_in(answers))
        self._group.adopt_descendants()
        memory = replace(_memory(answers), host_bytes=self._group.host_bytes())
        self._group.pause()
        step_ns = max(int(answer["step_ns"]) for answer in answers)
        # It may have been ready long before anyone asked.
        ready_ns = max(int(answer["at_ns"]) for answer in answers)
        self._steps = int(answers[0]["steps"])
        left = dict.fromkeys(what for answer in answers for what in answer.get("left", ()))
        return Ready(self._steps, step_ns, memory, ready_ns - self._started_ns, tuple(left))

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        """One turn: wake, run `drop` unmeasured and `steps` measured steps, rest again.

        Where loaders may not keep up, steps go before the measured ones until what was made while it rested is used
        up, and there are as many measured ones more as each worker needs to have its turn. Of both there are as many as
        fit into the limit.
        """
        steps, answers = self._turn(steps, drop, time.monotonic_ns() + limit_ns)
        slowest = max(answers, key=lambda answer: int(answer["total_ns"]))
        input_ns = max(int(answer["input_ns"]) for answer in answers)
        block = Block(steps, int(slowest["total_ns"]), input_ns, _memory(answers), slowest["steps_ns"])
        self._stock = self._stock.after(steps, stocks_in(answers), _waited(answers))
        return block

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        """One turn under the profiler; the traces of all ranks."""
        paths = {number: self.folder / f"rank{number}" / TRACE for number in self._ranks}
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        end_ns = time.monotonic_ns() + limit_ns
        self._group.resume()
        drop, _ = self._use_up(drop, steps, end_ns)
        for number, rank in self._ranks.items():
            rank.send({"trace": {"steps": steps, "drop": drop, "path": str(paths[number])}})
        self._answers("traced", end_ns)
        self._steps += drop + steps
        self._group.pause()
        return [path for path in paths.values() if path.exists()]

    def close(self) -> None:
        """End the program and everything it started."""
        self._group.end()
        for rank in self._ranks.values():
            rank.connection.close()
        self._listener.close()
        self._room.cleanup()

    def _turn(self, steps: int, drop: int, end_ns: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many steps were measured, and what all ranks say of them."""
        self._group.resume()
        drop, steps = self._use_up(drop, steps, end_ns)
        answers = self._ask({"run": {"steps": steps, "drop": drop}}, end_ns)
        self._group.pause()
        return steps, answers

    def _use_up(self, drop: int, steps: int, end_ns: int) -> tuple[int, int]:
        """Drop steps until the loaders' stock is what it is where training goes on; how many are yet to be dropped, and
        how many to be measured."""
        if not (drop and self._stock.needed):
            return drop, self._stock.whole_turns(steps)
        step_ns, answers = self._dropped(drop, end_ns)
        rounds, whole = self._stock.round_steps, self._stock.whole_turns(steps)
        while self._stock.goes_on(stocks_in(answers), _waited(answers)):
            if not _fits(rounds + whole, step_ns, end_ns):
                break
            step_ns, answers = self._dropped(rounds, end_ns)
        self._stock = self._stock.then()
        return 0, self._stock.whole_turns(steps) if _fits(whole, step_ns, end_ns) else steps

    def _dropped(self, steps: int, end_ns: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how long a step takes of so many unmeasured ones, and what all ranks say of them."""
        answers = self._ask({"run": {"steps": steps, "drop": 0}}, end_ns)
        return max(int(answer["total_ns"]) for answer in answers) // steps, answers

    def _ask(self, command: dict[str, Any], end_ns: int) -> list[dict[str, Any]]:
        for rank in self._ranks.values():
            rank.send(command)
        answers = self._answers("block", end_ns)
        self._steps += sum(command["run"].values())
        return answers

    def _meet(self, end_ns: int) -> None:
        """Wait until every rank has said hello."""
        expected = None
        groups: set[int] = set()
        while expected is None or len(self._ranks) < expected:
            if not _readable(self._listener, end_ns, self._group):
                self._fail(end_ns)
            connection, _ = self._listener.accept()
            rank = _Rank(connection)
            message = rank.read(end_ns, self._group)
            if message is None or "hello" not in message:
                self._fail(end_ns)
            hello = message["hello"]
            if hello.get("sources", self._sources) != self._sources:
                self._group.end()
                words = f"rank {hello['rank']} does not run the program that is tried: its files differ"
                raise ArmFailed(Trouble.CRASHED, words)
            expected = max(1, int(hello["world_size"]))
            self._ranks[int(hello["rank"])] = rank
            groups.add(int(hello["group"]))
            self._group.add(int(hello["group"]))
        self._group.keep_awake_but(groups)

    def _answers(self, name: str, end_ns: int) -> list[dict[str, Any]]:
        """The next message of every rank, which must be of this name; the ranks in order."""
        found = []
        for _, rank in sorted(self._ranks.items()):
            message = rank.read(end_ns, self._group)
            if message is None or name not in message:
                self._fail(end_ns, message)
            found.append(message[name])
        return found

    def _fail(self, end_ns: int, message: Mapping[str, Any] | None = None) -> NoReturn:
        """Raise what explains best that an answer did not come."""
        if message is not None and "broken" in message:
            self._group.end()
            raise ArmFailed(Trouble.CRASHED, f"diagnose itself failed inside it: {message['broken']['message']}")
        if message is not None and "refused" in message:
            self._group.end()
            raise ArmFailed(Trouble.REFUSED, str(message["refused"]["reason"]))
        ended = (message or {}).get("ended")
        steps = None if ended is None else int(ended["steps"])
        if ended is None and time.monotonic_ns() >= end_ns and not self._group.exited:
            self._group.end()
            waited = format_ns(time.monotonic_ns() - self._started_ns)
            raise ArmFailed(Trouble.HUNG, f"no answer in time; ended {waited} after its start")
        returncode = self._group.wait(_LAST_STEPS_NS)
        words = self._group.last_words()
        self._group.end()
        if returncode == 0 or (returncode is None and ended is not None):
            did = "before the trial's first step" if steps is None else f"after {steps} steps"
            raise ArmFailed(Trouble.ENDED, f"the program came to its end {did}", steps)
        if died_of_memory(words, returncode):
            if steps is None:  # a rank says hello when its first step has ended
                steps = self._steps or None if self._ranks else 0
            raise ArmFailed(Trouble.OUT_OF_MEMORY, words or "ended by the system", steps)
        how = "closed its connection" if returncode is None else _exit_words(returncode)
        raise ArmFailed(Trouble.CRASHED, f"the program {how}\n{words}".rstrip(), steps or self._steps)


class _Rank:
    """The connection to one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # that it is gone shows when its answer is read
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self, end_ns: int, group: Group) -> dict[str, Any] | None:
        """The rank's next message; None when the time is up or the rank is gone."""
        while b"\n" not in self._received:
            if not _readable(self.connection, end_ns, group):
                return None
            try:
                part = self.connection.recv(1 << 20)
            except OSError:
                return None
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _waited(answers: Sequence[Mapping[str, Any]]) -> float:
    """The largest share of some steps for which a rank waited for batches."""
    return max(int(answer["input_ns"]) / max(1, int(answer["total_ns"])) for answer in answers)


def _fits(steps: int, step_ns: int, end_ns: int) -> bool:
    """Whether so many steps end in time, though they may be longer than those before."""
    return time.monotonic_ns() + _LONGER * steps * step_ns < end_ns


def _readable(source: socket.socket, end_ns: int, group: Group) -> bool:
    """Wait until there is something to read; False when the time is up or the program is gone. Raises Cancelled."""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            left_s = (end_ns - time.monotonic_ns()) / NS_PER_S
            if selector.select(max(0.0, min(_CHECK_S, left_s))):
                return True
            group.go_on()
            if left_s <= 0:
                return False
            if group.exited:
                return bool(selector.select(0))


def _memory(answers: list[dict[str, Any]]) -> Memory:
    """The memory of the rank that holds most."""
    fields = max((answer.get("memory") or {} for answer in answers), key=lambda seen: int(seen.get("peak_bytes", -1)))
    known = {name: int(value) for name, value in fields.items() if int(value) >= 0}
    return Memory(**known)


def _exit_words(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    number = -returncode
    name = next((f" ({each.name})" for each in signal.Signals if each == number), "")
    return f"was ended by signal {number}{name}"
