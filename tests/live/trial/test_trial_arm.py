"""Live arms: how they are paused, ended and outlived by nothing.

The programs are puppets that speak the protocol of `collect.inside.modes.ab_worker` without torch, so that each starts
within milliseconds; `test_trial_turns.py` has the real other side.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from watching import BARE, LIMIT_NS, LIMIT_S, QUICK, left_of

from diagnose.collect import environment
from diagnose.program import Program
from diagnose.trial.process.arm import Arm, ArmFailed, Trouble, Workplace
from diagnose.trial.process.process_group import Groups

PUPPET = """
import ctypes, json, os, socket, subprocess, sys, time
behaviour = sys.argv[1]
if behaviour == "silent":
    time.sleep(600)
if behaviour == "no-steps":
    sys.exit(0)
if behaviour == "no-memory":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
worker = subprocess.Popen(sleeper, start_new_session=behaviour == "launcher")
open(json.loads(os.environ["DIAGNOSE_RECIPE"])["room"] + "/listener", "w").close()
open("worker.pid", "w").write(str(worker.pid))
link = socket.socket(socket.AF_UNIX)
link.connect(json.loads(os.environ["DIAGNOSE_RECIPE"])["socket"])
lines = link.makefile("r")
def say(**message):
    link.sendall(json.dumps(message).encode() + b"\\n")
say(hello={"rank": 0, "world_size": 1, "pid": os.getpid(), "group": os.getpgid(0)})
at_ns = time.monotonic_ns()
open("ready_at", "w").write(str(at_ns))
say(ready={"steps": 5, "step_ns": 1000, "at_ns": at_ns, "memory": {"peak_bytes": 7}})
for turn, line in enumerate(lines):
    word, wanted = next(iter(json.loads(line).items()))
    if behaviour == "crash":
        sys.exit("ValueError: the fix broke it")
    if behaviour == "memory":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    if behaviour == "aborts":
        print("terminate called after throwing\\n  what():  CUDA error: out of memory", file=sys.stderr, flush=True)
        os.abort()
    if behaviour == "child":
        subprocess.run([sys.executable, "-c", "import os; os.abort()"])
        sys.exit("ValueError: no such port")
    if behaviour == "segfault":
        ctypes.string_at(0)
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "ends" and turn == 1:
        say(ended={"steps": 12})
        worker.kill()
        sys.exit(0)
    if word == "trace":
        open(wanted["path"], "w").write("a trace")
        say(traced={"path": wanted["path"]})
        continue
    say(block={"total_ns": 1000 * wanted["steps"], "steps_ns": [], "input_ns": 10, "memory": {"peak_bytes": 9}})
"""

StartArm = Callable[[str], Arm]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PUPPET)
    return folder


@pytest.fixture
def start(tmp_path: Path, project: Path) -> Iterator[StartArm]:
    with Groups() as groups:
        place = Workplace(groups, tmp_path / "arms", sys.executable, lambda _: dict(os.environ))
        arms: list[Arm] = []

        def begin(behaviour: str) -> Arm:
            program = Program.parse(["train.py", behaviour], cwd=project)
            arms.append(Arm(place, program, f"arm{len(arms)}", warmup_steps=5))
            return arms[-1]

        yield begin
        for arm in arms:
            arm.close()


def worker_of(project: Path) -> psutil.Process:
    return psutil.Process(int((project / "worker.pid").read_text()))


def stopped(process: psutil.Process) -> bool:
    """Whether a process stops within the limit: a signal takes a moment to reach a process on another core."""
    deadline = time.monotonic() + LIMIT_S
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        os.sched_yield()
    return process.status() == psutil.STATUS_STOPPED


def test_an_arm_warms_up_runs_blocks_and_says_what_it_measured(start: StartArm) -> None:
    arm = start("normal")
    ready = arm.ready(LIMIT_NS)
    assert (ready.steps, ready.step_ns, ready.memory.peak_bytes) == (5, 1000, 7)
    assert ready.memory.host_bytes is not None
    block = arm.run(10, 2, LIMIT_NS)
    assert (block.steps, block.mean_ns, block.input_ns, block.memory.peak_bytes) == (10, 1000.0, 10, 9)


def test_a_start_is_over_when_the_program_was_ready_not_when_it_was_asked(start: StartArm, project: Path) -> None:
    began_ns = time.monotonic_ns()
    arm = start("normal")
    began_by_ns = time.monotonic_ns()
    ready = arm.ready(LIMIT_NS)
    at_ns = int((project / "ready_at").read_text())
    assert at_ns - began_by_ns <= ready.started_ns <= at_ns - began_ns


def test_a_resting_arm_is_stopped_with_all_its_processes(start: StartArm, project: Path) -> None:
    arm = start("normal")
    arm.ready(LIMIT_NS)
    assert stopped(worker_of(project))
    arm.run(1, 0, LIMIT_NS)
    assert stopped(worker_of(project))


def test_ranks_in_sessions_of_their_own_rest_and_end_too(start: StartArm, project: Path) -> None:
    arm = start("launcher")
    arm.ready(LIMIT_NS)
    worker = worker_of(project)
    assert stopped(worker)
    arm.close()
    assert left_of([worker]) == []


def test_a_trace_is_written_where_the_rank_belongs(start: StartArm) -> None:
    arm = start("normal")
    arm.ready(LIMIT_NS)
    (path,) = arm.trace(4, 1, LIMIT_NS)
    assert path == arm.folder / "rank0" / "trace.json.gz"
    assert path.read_text() == "a trace"


def test_closing_ends_the_program_and_what_it_started(start: StartArm, project: Path) -> None:
    arm = start("normal")
    arm.ready(LIMIT_NS)
    worker = worker_of(project)
    arm.close()
    assert left_of([worker]) == []


@pytest.mark.parametrize(
    ("behaviour", "trouble", "words"),
    [
        ("crash", Trouble.CRASHED, "ValueError: the fix broke it"),
        ("memory", Trouble.OUT_OF_MEMORY, "Tried to allocate 2 GiB"),
        ("aborts", Trouble.OUT_OF_MEMORY, "CUDA error: out of memory"),
        ("child", Trouble.CRASHED, "ValueError: no such port"),
    ],
)
def test_a_program_that_dies_is_told_apart_by_its_last_words(
    start: StartArm, behaviour: str, trouble: Trouble, words: str
) -> None:
    arm = start(behaviour)
    arm.ready(LIMIT_NS)
    with pytest.raises(ArmFailed, match=words) as caught:
        arm.run(1, 0, LIMIT_NS)
    assert caught.value.trouble is trouble


@pytest.mark.parametrize(("behaviour", "steps"), [("no-memory", 0), ("memory", 5)])
def test_one_without_memory_took_the_steps_that_it_told_of_and_none_where_it_never_said_hello(
    start: StartArm, behaviour: str, steps: int | None
) -> None:
    arm = start(behaviour)
    with pytest.raises(ArmFailed, match="CUDA out of memory") as caught:
        arm.ready(LIMIT_NS)
        arm.run(1, 0, LIMIT_NS)
    assert (caught.value.trouble, caught.value.steps) == (Trouble.OUT_OF_MEMORY, steps)


def test_a_program_that_a_signal_ends_says_where_it_was_and_how_far_it_came(start: StartArm) -> None:
    arm = start("segfault")
    arm.ready(LIMIT_NS)
    with pytest.raises(ArmFailed) as caught:
        arm.run(1, 0, LIMIT_NS)
    how, what, *frames = str(caught.value).splitlines()
    assert how == f"the program was ended by signal {int(signal.SIGSEGV)} (SIGSEGV)"
    assert what.startswith("Fatal Python error: Segmentation fault")
    assert frames[-1].endswith("in string_at")
    assert "train.py" in frames[0]
    assert (caught.value.trouble, caught.value.steps) == (Trouble.CRASHED, 5)


def test_a_program_that_is_ended_for_want_of_memory_and_cannot_say_how_far_it_came_took_the_steps_it_told_of(
    start: StartArm,
) -> None:
    """As one that the system kills: what is tried then has to get past them."""
    arm = start("aborts")
    arm.ready(LIMIT_NS)
    with pytest.raises(ArmFailed) as caught:
        arm.run(1, 0, LIMIT_NS)
    assert (caught.value.trouble, caught.value.steps) == (Trouble.OUT_OF_MEMORY, 5)


def test_a_program_that_hangs_in_a_block_is_ended_with_its_group(start: StartArm, project: Path) -> None:
    arm = start("hang")
    arm.ready(LIMIT_NS)
    worker = worker_of(project)
    with pytest.raises(ArmFailed, match="no answer in time") as caught:
        arm.run(1, 0, limit_ns=50_000_000)
    assert caught.value.trouble is Trouble.HUNG
    assert left_of([worker]) == []


def test_a_program_that_never_takes_a_step_is_given_up(start: StartArm) -> None:
    with pytest.raises(ArmFailed) as caught:
        start("silent").ready(limit_ns=50_000_000)
    assert caught.value.trouble is Trouble.HUNG


def test_a_program_that_comes_to_its_end_has_not_failed(start: StartArm) -> None:
    arm = start("ends")
    arm.ready(LIMIT_NS)
    arm.run(1, 0, LIMIT_NS)
    with pytest.raises(ArmFailed, match="after 12 steps") as caught:
        arm.run(1, 0, LIMIT_NS)
    assert (caught.value.trouble, caught.value.steps) == (Trouble.ENDED, 12)


def test_a_program_without_steps_says_so(start: StartArm) -> None:
    with pytest.raises(ArmFailed, match="before the trial's first step") as caught:
        start("no-steps").ready(LIMIT_NS)
    assert caught.value.trouble is Trouble.ENDED


CONTROLLER = """
import os, sys
from pathlib import Path
from diagnose.program import Program
from diagnose.program.copy import copy_program
from diagnose.trial.process.arm import Arm, Workplace
from diagnose.trial.process.process_group import Groups

project, room = Path(sys.argv[1]), Path(sys.argv[2])
program = copy_program(Program.parse(["train.py", "normal"], cwd=project), room / "copy")
with Groups() as groups:
    arm = Arm(Workplace(groups, room / "arms", sys.executable, lambda _: dict(os.environ)), program, "arm", 5)
    arm.ready(int(sys.argv[3]))
    print(program.cwd, flush=True)
    print(groups.room, flush=True)
    sys.stdin.read()
"""


def tree_hash(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(file).encode() + file.read_bytes() for file in files)).hexdigest()


def test_killing_the_controller_leaves_no_process_and_the_users_tree_as_it_was(tmp_path: Path, project: Path) -> None:
    before = tree_hash(project)
    here = str(Path(__file__).parents[3])
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(project), str(tmp_path / "room"), str(LIMIT_NS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": here},
        text=True,
    )
    assert controller.stdout is not None
    assert controller.stdin is not None
    copy, sockets = (Path(controller.stdout.readline().strip()) for _ in range(2))
    worker = worker_of(copy)
    family = psutil.Process(controller.pid).children(recursive=True)
    assert stopped(worker)
    assert list(sockets.glob("*/turns"))
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdin.close()
    controller.stdout.close()
    assert left_of([*family, worker]) == []
    assert not sockets.exists()
    assert tree_hash(project) == before


def test_ending_a_group_kills_what_ignores_a_request_to_end(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    with Groups() as groups:
        group = groups.start([sys.executable, "-S", "-c", stubborn], tmp_path, os.environ, tmp_path / "stubborn")
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "stubborn.out").read_bytes() and time.monotonic() < deadline:
            os.sched_yield()
        assert group.end() == -signal.SIGKILL


def test_what_an_arm_s_workers_leave_in_its_room_goes_with_it(tmp_path: Path, project: Path) -> None:
    with Groups() as groups:
        place = Workplace(groups, tmp_path / "arms", sys.executable, lambda _: dict(os.environ))
        with Arm(place, Program.parse(["train.py", "normal"], cwd=project), "arm", warmup_steps=5) as arm:
            arm.ready(LIMIT_NS)
            assert len(list(groups.room.glob("*/listener"))) == 1
        assert list(groups.room.iterdir()) == []
    assert not groups.room.exists()


def test_multiprocessing_keeps_its_sockets_in_the_room_of_a_trial(tmp_path: Path) -> None:
    recipe = {**QUICK.to_json(tmp_path / "run"), "room": str(tmp_path)}
    asks = "import torch, multiprocessing.util as util; print(util.get_temp_dir())"
    done = subprocess.run(
        [sys.executable, "-c", asks], env=environment(recipe, BARE), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout.split() == [str(tmp_path)], done.stderr
