"""How far a program came before memory ran out, from the end of its traceback and the steps that it told of."""

from __future__ import annotations

import pytest

from diagnose.trial.process.oom_progress import OomProgress, Phase

LACK = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
BACKWARD = '  File "/env/torch/autograd/graph.py", line 829, in _engine_run_backward\n    return run()\n'
AGAIN = '  File "/env/torch/utils/checkpoint.py", line 1128, in unpack_hook\n    _run_fn(*args)\n'
FORWARD = '  File "/home/u/train.py", line 44, in forward\n    x = block(x)\n'
UPDATE = '  File "/env/torch/optim/adamw.py", line 232, in step\n    self._init_group(group)\n'
NAMED = '  File "/home/u/train.py", line 50, in main\n    backward(loss)  # in backward\n'


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (BACKWARD, Phase.BACKWARD),
        (AGAIN + FORWARD, Phase.BACKWARD),
        (UPDATE, Phase.OPTIMIZER),
        (FORWARD, None),
        (NAMED, None),
        ("", None),
    ],
)
def test_the_phase_is_that_of_the_frames_that_show_one(frames: str, phase: Phase | None) -> None:
    assert OomProgress.of(3, frames + LACK) == OomProgress(3, phase)


def test_more_steps_are_farther_whatever_the_phase() -> None:
    assert OomProgress(2, Phase.OPTIMIZER).before(OomProgress(3))
    assert OomProgress(3).at_least > OomProgress(2, Phase.OPTIMIZER).at_least


def test_of_the_same_step_the_phase_decides_where_both_are_known() -> None:
    assert OomProgress(2, Phase.BACKWARD).before(OomProgress(2, Phase.OPTIMIZER))
    assert not OomProgress(2).before(OomProgress(2, Phase.OPTIMIZER))
    assert not OomProgress(2, Phase.BACKWARD).before(OomProgress(2, Phase.BACKWARD))


def test_what_is_unknown_is_not_earlier() -> None:
    assert not OomProgress().before(OomProgress(7))
