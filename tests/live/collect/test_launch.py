"""Starting a command, following it, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from watching import LIMIT_S, PROGRAMS, QUICK, left_of

from diagnose.collect import Recipe, launch, processes
from diagnose.collect.launch import Outcome, run
from diagnose.collect.processes import of_run
from diagnose.collect.progress import CounterValues, FactsWritten, PhaseBegan, Progress, StepsEnded, Tail, WindowWritten
from diagnose.errors import UsageError

ENDLESS = ("training.py", "--steps", "1000000", "--workers", "1")


def start(folder: Path, *words: str, recipe: Recipe = QUICK, **options: object) -> tuple[Outcome, list[Progress]]:
    """Run `python WORDS` from the folder of programs; how it ended, and all that was told meanwhile."""
    told: list[Progress] = []
    outcome = run([sys.executable, *words], recipe, folder, told.append, cwd=PROGRAMS, **options)  # type: ignore[arg-type]
    return outcome, told


def of(kind: type, told: list[Progress]) -> list[Progress]:
    """The records of one kind, in their order."""
    return [record for record in told if isinstance(record, kind)]


def test_progress_tells_phases_steps_and_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "COUNTERS_EVERY_S", 0.0)  # at every look: the program has some, however fast it ends
    outcome, told = start(tmp_path, "training.py", "--slow-item", "0.02")
    assert outcome == Outcome(returncode=0, stopped=False, interrupted=False, ranks=(0,))
    assert [record.phase for record in told if isinstance(record, PhaseBegan) and not record.detail] == [
        "waiting for the first step",
        "watching until steps are steady, then tracing 4",
        "writing the trace: steps wait until it is written",
        "watching",
    ]
    steps = [record for record in told if isinstance(record, StepsEnded)]
    assert sum(len(record.ends_ns) for record in steps) == sum(len(record.input_ns) for record in steps) == 40
    assert len(steps) > 1
    [window] = [record for record in told if isinstance(record, WindowWritten)]
    assert (window.rank, window.steps, window.path.exists()) == (0, 4, True)
    assert of(FactsWritten, told)
    counters = [record.values for record in told if isinstance(record, CounterValues)]
    assert counters
    assert all(values["host.rss_bytes"] > 1 << 20 for values in counters)
    written = (tmp_path / "rank0" / "counters.jsonl").read_text()
    assert written.count('"host.rss_bytes"') == len(counters)
    assert '"host.process_rss_bytes"' in written


def test_a_program_that_takes_no_step_leaves_no_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome, told = start(tmp_path, "-c", "print('hello'); raise SystemExit(4)")
    assert outcome == Outcome(returncode=4, stopped=False, interrupted=False, ranks=())
    assert {record.phase for record in told if isinstance(record, PhaseBegan)} == {"waiting for the first step"}
    assert len(of(PhaseBegan, told)) == len(told)
    assert capfd.readouterr().out == "hello\n"


def test_the_run_ends_after_the_trace_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a machine with much else to do a program may need longer for its end than it is given before it is killed.
    monkeypatch.setattr(processes, "end_all", partial(processes.end_all, grace_s=LIMIT_S))
    outcome, told = start(tmp_path, *ENDLESS, recipe=replace(QUICK, stop_after_trace=True, most_log_s=LIMIT_S))
    assert outcome.stopped
    assert sum(len(record.ends_ns) for record in told if isinstance(record, StepsEnded)) >= QUICK.log_steps
    assert outcome.returncode == -signal.SIGTERM
    assert (tmp_path / "rank0" / "trace.json.gz").exists()
    assert '"reason": "stopped"' in (tmp_path / "rank0" / "end.json").read_text()
    assert left_of(of_run(None, tmp_path)) == []


def test_the_run_ends_when_its_time_is_up(tmp_path: Path) -> None:
    recipe = replace(QUICK, most_s=0.0, log_steps=10**9, most_log_s=LIMIT_S)
    outcome = run([sys.executable, *ENDLESS], recipe, tmp_path, cwd=PROGRAMS)
    assert outcome.stopped


def test_stopping_ends_workers_and_children_too(tmp_path: Path) -> None:
    stop = threading.Event()
    seen: set[psutil.Process] = set()

    def watch(record: Progress) -> None:
        if isinstance(record, StepsEnded):
            seen.update(of_run(None, tmp_path))
            stop.set()

    outcome = run([sys.executable, *ENDLESS], QUICK, tmp_path, watch, cwd=PROGRAMS, stop=stop)
    assert outcome.stopped
    assert len(seen) >= 2
    assert left_of(seen) == []


_KILLED = """
import os, signal, subprocess
worker = subprocess.Popen(["sh", "-c", "kill -STOP $$"])
os.waitpid(worker.pid, os.WUNTRACED)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_stands_still_when_its_process_is_killed_goes_on_to_its_end(tmp_path: Path) -> None:
    outcome, _ = start(tmp_path, "-c", _KILLED)
    assert outcome.returncode == -signal.SIGKILL
    assert left_of(of_run(None, tmp_path)) == []


def test_an_error_of_the_caller_ends_the_program(tmp_path: Path) -> None:
    class Unexpected(Exception):
        pass

    def fail(record: Progress) -> None:
        if isinstance(record, StepsEnded):
            raise Unexpected

    with pytest.raises(Unexpected):
        run([sys.executable, *ENDLESS], QUICK, tmp_path, fail, cwd=PROGRAMS)
    assert left_of(of_run(None, tmp_path)) == []


def test_a_termination_is_the_programs_to_handle(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output: list[str] = []
    ready = threading.Event()

    def listen(text: str) -> None:
        output.append(text)
        if "ready\n" in "".join(output):  # with its end: the handler may run between the two writes of a print
            ready.set()

    def terminate() -> None:
        ready.wait(LIMIT_S)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    outcome, _ = start(tmp_path, "awaits_signal.py", on_output=listen)
    thread.join()
    assert outcome == Outcome(returncode=5, stopped=False, interrupted=False, ranks=())
    assert "".join(output) == "ready\ngot SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert capfd.readouterr().out == ""


def test_signals_that_are_ignored_here_are_ignored_by_the_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of a job that a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start(tmp_path, "-c", "import signal; print(signal.getsignal(signal.SIGINT))")
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().out == f"{signal.SIG_IGN}\n"


def test_a_line_that_is_no_record_costs_its_step_alone(tmp_path: Path) -> None:
    """As a full disk may cut one off."""
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "claim").write_text("{}")
    (tmp_path / "rank0" / "steps.jsonl").write_text(
        '{"t":1,"b":1,"w":0}\n{"t":2,"b"{"t":3,"b":1,"w":0}\n{"t":4,"w":0}\n'
    )
    [steps] = [record for record in Tail(tmp_path, 4).new() if isinstance(record, StepsEnded)]
    assert steps.ends_ns == (1, 4)


UNDER_A_SCREEN = ("QUICK", "on_output=lambda text: None")
FOR_ITS_TRACE = ("replace(QUICK, stop_after_trace=True, log_steps=10**9, most_log_s=10**9)", "")


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGHUP, UNDER_A_SCREEN), (signal.SIGKILL, UNDER_A_SCREEN), (signal.SIGKILL, FOR_ITS_TRACE)],
)
def test_a_program_that_nobody_sees_or_waits_for_ends_with_us(
    tmp_path: Path, number: signal.Signals, how: tuple[str, str]
) -> None:
    """As when the terminal is closed: its signal goes to us alone."""
    recipe, options = how
    watching = (
        "import signal, sys; from dataclasses import replace; from pathlib import Path; from watching import QUICK; "
        "from diagnose.collect.launch import run; from diagnose.collect.progress import FactsWritten;"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL);"  # tests that run under nohup are born deaf to it
        f"run([sys.executable, *{ENDLESS!r}], {recipe}, Path({str(tmp_path)!r}), "
        "lambda told: print('started', flush=True) if isinstance(told, FactsWritten) else None, "
        f"cwd=Path({str(PROGRAMS)!r}), {options})"
    )
    path = os.pathsep.join(map(str, (PROGRAMS.parent / "support", PROGRAMS.parent.parent)))
    variables = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", watching], env=variables, stdout=subprocess.PIPE, text=True) as own:
        assert own.stdout is not None
        try:
            assert own.stdout.readline() == "started\n"
            started = of_run(None, tmp_path)
            assert len(started) >= 2
        finally:
            own.send_signal(number)
    assert left_of(started) == []


def test_a_screen_gets_the_output_of_a_terminal(tmp_path: Path) -> None:
    output: list[str] = []
    program = "import sys; print(sys.stdout.isatty(), sys.stdin.read() == '', '\\u00b5')"
    outcome, _ = start(tmp_path, "-c", program, on_output=output.append)
    assert outcome.returncode == 0
    assert "".join(output) == "True True µ\n"


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot start no-such-launcher: no command of that name is on the PATH"):
        run(["no-such-launcher", "train.py"], QUICK, tmp_path)


def test_the_tail_waits_for_whole_lines_and_follows_a_restart(tmp_path: Path) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    (rank / "claim").write_text('{"pid": 1, "device": null}')
    steps = rank / "steps.jsonl"
    tail = Tail(tmp_path, 4)
    steps.write_text('{"t":10,"b":1,"w":1}\n{"t":2')
    assert of(StepsEnded, list(tail.new())) == [StepsEnded(0, (10,), (1,))]
    with steps.open("a") as file:
        file.write('0,"b":1,"w":2}\n')
    assert of(StepsEnded, list(tail.new())) == [StepsEnded(0, (20,), (2,))]
    steps.write_text('{"t":30,"b":1,"w":3}\n')
    assert of(StepsEnded, list(tail.new())) == [StepsEnded(0, (30,), (3,), anew=True)]
    assert of(StepsEnded, list(tail.new())) == []


_PARENT = """
import multiprocessing, signal, sys

def work(ours, theirs):
    theirs.close()
    try:
        print(ours.recv(), flush=True)
    except EOFError:
        print("broken", flush=True)

def finish(number, frame):
    theirs.send("finished")
    worker.join()
    sys.exit()

ours, theirs = multiprocessing.get_context("fork").Pipe()
worker = multiprocessing.get_context("fork").Process(target=work, args=(ours, theirs))
worker.start()
ours.close()
{handler}
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process hears is read from /proc")
@pytest.mark.parametrize(("handler", "said"), [("", ""), ("signal.signal(signal.SIGTERM, finish)", "finished\n")])
def test_workers_say_nothing_of_a_parent_that_was_ended(tmp_path: Path, handler: str, said: str) -> None:
    words = [sys.executable, "-c", _PARENT.format(handler=handler)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        processes.end_all(program.pid, tmp_path, grace_s=LIMIT_S)
        assert program.stdout.read() == said


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_torchs_launcher_says_nothing_of_a_job_that_was_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: set[psutil.Process] = set()

    def watch(record: Progress) -> None:
        if isinstance(record, WindowWritten):
            seen.update(of_run(None, tmp_path))

    command = [*TORCHRUN, "two_ranks.py", "1000000"]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}  # else it tells of its choice
    outcome = run(command, replace(QUICK, stop_after_trace=True), tmp_path, watch, cwd=PROGRAMS, base=quiet)
    assert outcome.stopped
    assert outcome.ranks == (0, 1)
    assert len(seen) >= 3
    assert left_of({*seen, *of_run(None, tmp_path)}) == []
    assert tuple(capfd.readouterr()) == ("", "")


_LAST_WILL = """
import os, signal, sys, threading
from torch.distributed import TCPStore

def finish(number, frame):
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.set("done", "saved")
    os.write(1, store.get("done") + b"\\n")
    os._exit(0)

signal.signal(signal.SIGTERM, finish)
os.write(1, b"ready\\n")
threading.Event().wait()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process hears is read from /proc")
def test_ranks_that_hear_of_their_end_have_their_launcher_until_then(tmp_path: Path) -> None:
    script = tmp_path / "last_will.py"
    script.write_text(_LAST_WILL)
    with subprocess.Popen(
        [*TORCHRUN, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as job:
        assert job.stdout is not None
        assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        family = of_run(job.pid, tmp_path)
        processes.end_all(job.pid, tmp_path, grace_s=LIMIT_S)
        assert job.stdout.read() == "saved\n" * 2
    assert left_of(family) == []


_TOGETHER = """
import os, signal, sys, threading
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
os.write(1, b"ready\\n")
threading.Event().wait()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process hears is read from /proc")
def test_of_ranks_that_hear_of_their_end_and_end_at_once_their_launcher_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "HELD_S", LIMIT_S)
    script = tmp_path / "together.py"
    script.write_text(_TOGETHER)
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [*TORCHRUN, str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        family = of_run(job.pid, tmp_path)
        processes.end_all(job.pid, tmp_path, grace_s=LIMIT_S)
        assert (job.stdout.read(), job.stderr.read()) == ("", "")
    assert left_of(family) == []


_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"


def test_what_does_not_end_is_asked_twice_within_its_grace_and_then_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def after(seconds: float, processes: list[psutil.Process]) -> list[psutil.Process]:
        waited.append(seconds)
        return processes

    monkeypatch.setattr(processes, "_after", after)
    with subprocess.Popen([sys.executable, "-c", _DEAF], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        processes.end_all(program.pid, tmp_path, grace_s=8.0)
        assert program.wait(LIMIT_S) == -signal.SIGKILL
    assert sum(waited) == 8.0


def test_a_launcher_whose_ranks_are_gone_is_not_let_go_on_whoever_else_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[signal.Signals] = []
    monkeypatch.setattr(processes, "_signal", lambda _, number: told.append(number))
    here = psutil.Process()
    with subprocess.Popen([sys.executable, "-c", ""]) as program:
        gone = psutil.Process(program.pid)
        program.wait(LIMIT_S)
    assert processes._served([here], [gone], [here], 0.0) == [here]
    assert told == []
    assert processes._served([here], [here], [here], 0.0) == [here]
    assert told == [signal.SIGCONT], "a rank that lives may need it"
