"""What is said of a program that fails in a copy with no fix in it: where, after what, and what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.collect.inside.hooks import inductor_cache_workaround
from diagnose.program.guard import Guard
from diagnose.trial.ab.result import ORIGINAL, PATCHED
from diagnose.trial.baseline_failure import OutOfMemoryBaseline, fails_as_found
from diagnose.trial.process.arm import ArmFailed, Trouble
from diagnose.trial.process.stderr_tail import of_the_program, where_it_crashed

CRASH = """loss 5.551
Fatal Python error: Segmentation fault

Thread 0x00007fb1 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait

Current thread 0x00007fca [python] (most recent call first):
  File "/site-packages/torch/functional_utils.py", line 269 in gen_alias_from_base
  File "/project/train.py", line 35 in forward
  File "/project/train.py", line 87 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_a_crash_is_told_like_a_traceback_by_its_innermost_frames() -> None:
    assert where_it_crashed(CRASH, lines=3) == (
        "Fatal Python error: Segmentation fault (most recent call last)\n"
        '  File "/project/train.py", line 35 in forward\n'
        '  File "/site-packages/torch/functional_utils.py", line 269 in gen_alias_from_base'
    )


@pytest.mark.parametrize("text", ["", "ValueError: x\n"], ids=["none", "error"])
def test_what_is_no_crash_is_left_to_others(text: str) -> None:
    assert where_it_crashed(text, lines=9) is None


def test_of_a_crash_outside_python_other_threads_are_not_told() -> None:
    assert where_it_crashed(CRASH.partition("Current")[0], lines=9) == "Fatal Python error: Segmentation fault"


def test_a_rank_that_aborts_because_another_has_raised_is_not_told_in_its_place() -> None:
    raised = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: no such bucket\n"
    lost = "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: Connection closed by peer\n"
    assert where_it_crashed(raised + CRASH, lines=9) is None
    assert where_it_crashed(lost + raised + CRASH, lines=9) is None
    assert where_it_crashed(lost + CRASH, lines=9) is not None
    assert where_it_crashed("[rank0]:[E1122 watchdog] Timeout of a collective\n" + CRASH, lines=9) is not None


def test_a_warning_of_a_rank_is_not_told_in_place_of_an_error_without_one() -> None:
    """Libraries that catch an error write it themselves, without the rank's name before it."""
    error = "Error executing job\nValueError: no such bucket\n"
    warning = "[rank0]:[W1126 10:33:43 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called\n"
    assert of_the_program(error + warning) == error


THROWN = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: out of memory
Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43
frame #0: c10::Error::Error
"""


@pytest.mark.parametrize(("said_before", "kept"), [(THROWN, 3), ("loss 5.551\ndouble free or corruption (out)\n", 1)])
def test_an_abort_is_told_with_its_reason(said_before: str, kept: int) -> None:
    aborted = CRASH.replace("loss 5.551\n", said_before).replace("Segmentation fault", "Aborted")
    told = (where_it_crashed(aborted, lines=5) or "").splitlines()
    reason = said_before.splitlines()
    assert told[:kept] == (reason[:3] if kept == 3 else reason[-1:])
    assert told[kept] == "Fatal Python error: Aborted (most recent call last)"
    assert len(told) <= 5
    assert told[-1].endswith("in gen_alias_from_base")


def said(trouble: Trouble, words: str, steps: int | None = None, side: int = ORIGINAL) -> list[str]:
    return str(fails_as_found(side, ArmFailed(trouble, words, steps))).splitlines()


def test_its_own_words_stand_between_what_happened_and_what_to_do_next() -> None:
    words = "the program exited with code 1\nTraceback\nValueError: no such port"
    first, *own, last = said(Trouble.CRASHED, words, steps=25, side=PATCHED)
    assert "without any fix, though it went well when it was watched" in first
    assert first.endswith("in the second after 25 steps or more, the program exited with code 1")
    assert own == ["Traceback", "ValueError: no such port"]
    assert "twice at once" in last


def test_one_that_dies_in_silence_is_told_by_its_place() -> None:
    first, last = said(Trouble.CRASHED, "the program was ended by signal 11 (SIGSEGV)", steps=0)
    assert first.endswith("in the first before its warm-up was over, the program was ended by signal 11 (SIGSEGV)")
    assert "twice at once" in last


def test_what_is_known_to_be_torchs_own_fault_comes_with_its_remedy() -> None:
    words = f"the program was ended by signal 11 (SIGSEGV)\n{where_it_crashed(CRASH, lines=12)}"
    assert said(Trouble.CRASHED, words)[-1] == inductor_cache_workaround.REMEDY


def test_want_of_memory_asks_for_memory() -> None:
    assert "free memory" in said(Trouble.OUT_OF_MEMORY, "CUDA out of memory")[-1]


def test_how_far_one_came_that_ran_out_of_memory_is_kept() -> None:
    failure = fails_as_found(ORIGINAL, ArmFailed(Trouble.OUT_OF_MEMORY, "CUDA out of memory", 36))
    assert isinstance(failure, OutOfMemoryBaseline) and failure.steps == 36
    assert not isinstance(fails_as_found(ORIGINAL, ArmFailed(Trouble.CRASHED, "code 1", 36)), OutOfMemoryBaseline)


def test_one_that_names_its_own_folder_is_told_to_let_the_path_begin_elsewhere(tmp_path: Path) -> None:
    """The words are those of the guard itself, as a program that does not expect them ends with."""
    (tmp_path / "project").mkdir()
    guard = Guard([str(tmp_path / "project")], str(tmp_path / "trials"))
    with pytest.raises(PermissionError) as refused:
        guard.prepare(str(tmp_path / "project" / "best.pt"))
    words = f"the program exited with code 1\nPermissionError: {refused.value}"
    assert "(__file__)" in said(Trouble.CRASHED, words)[-1]
