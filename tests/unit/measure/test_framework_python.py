"""Python of the framework's own is no stall of the user's."""

from __future__ import annotations

from typing import Any

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.measure.lines.framework_python import framework_python
from diagnose.rule import CannotTell, Claim, Intervals, drawn

MS = 1_000_000
TORCH = "torch/optim/adam.py(139): _init_group"
USER = "train.py(52): main"
DRAWN = """
    call: uuuuuuuuuuuuuuuuuu
    call:     tttttttttt
    host: olol          olol
    gpu :   kkkK          kkkK
    step:                     |
"""


def stalled(text: str = DRAWN, **known: Any) -> list[Claim]:
    measures = Measures(drawn(text, repeat=4, kernels={"K": "other_kernel"}, **known))
    return [answer for answer in plugins.load().rules["python-stall"].check(measures) if isinstance(answer, Claim)]


def test_a_stretch_whose_innermost_call_is_the_frameworks_is_no_stall() -> None:
    (claim,) = stalled(frames={"u": USER, "t": "model.py(7): vote"})
    assert claim.where[0].file == "model.py"
    assert not stalled(frames={"u": USER, "t": TORCH})


def test_the_standard_library_works_for_whoever_calls_it() -> None:
    """Letters: the user calls torch, which calls an enumeration's method; then the user calls `json`."""
    trace = drawn(
        """
        call: uuuuuuuuuuuuuuuu
        call:   tttttt
        call:     ee    jjj
        host: ol            ol
        gpu :   kk            kk
        step:                   |
        """,
        frames={"u": USER, "t": TORCH, "e": "enum.py(1267): __hash__", "j": "json/decoder.py(344): decode"},
    )
    begin = int(trace.frames.start_ns.min())
    everything = Intervals.of([begin], [begin + 16 * MS])
    assert list(framework_python(trace, 0, everything)) == [(begin + 2 * MS, begin + 8 * MS)]


def test_saving_and_logging_through_the_framework_stay_the_programs_own() -> None:
    for file in ("torch/serialization.py", "torch/utils/tensorboard/writer.py", "/venv/site-packages/torch/hub.py"):
        assert stalled(frames={"u": USER, "t": f"{file}(944): save"})
    assert not stalled(frames={"u": USER, "t": "/venv/site-packages/torch/nn/modules/module.py(1783): _call_impl"})


def test_a_thread_that_is_held_up_for_long_is_not_in_the_frameworks_python() -> None:
    assert stalled(frames={"u": USER, "t": TORCH}, unit_ns=3 * MS)


def test_without_stacks_the_start_of_a_backward_pass_is_known_by_its_operators() -> None:
    trace = drawn(
        """
        host  : ol    g         e
        host 1:            eeeeeeol
        gpu   :   kk               kk
        step  :                        |
        """,
        ops={"g": "aten::ones_like", "e": "autograd::engine::evaluate_function: MmBackward0"},
    )
    begin = int(trace.ops.start_ns.min())
    found = framework_python(trace, 0, Intervals.of([begin], [begin + 20 * MS]))
    assert list(found) == [(begin + 7 * MS, begin + 11 * MS)]


def test_without_recorded_calls_the_innermost_frame_of_a_sample_tells() -> None:
    """The program's line calls `clip_grad_norm_`: where that is seen to run, the program's own Python does not."""
    drawing = """
        host: ol          ol
        gpu :   kkk         kkk
        line:     ssssssss
        step:                  |
        """
    user = ("train.py", 98, "main")
    clip = ("/venv/lib/python3.11/site-packages/torch/nn/utils/clip_grad.py", 36, "_no_grad_wrapper")
    enum = ("/usr/lib/python3.11/contextlib.py", 81, "inner")
    assert stalled(drawing, stacks={"s": [user]})
    assert not stalled(drawing, stacks={"s": [clip, user]})
    assert not stalled(drawing, stacks={"s": [enum, clip, user]})
    assert stalled(drawing, stacks={"s": [enum, user, clip]})


def test_samples_alone_do_not_tell_python_from_an_operator_that_a_line_calls() -> None:
    """A run on the processor that ended before it was traced: `output = model(image)` is no Python of the user's."""
    drawing = """
        line: ssssssss
        step:         |
        """
    measures = Measures(drawn(drawing, repeat=4, stacks={"s": [("train.py", 30, "main")]}))
    answers = list(plugins.load().rules["python-stall"].check(measures))
    assert [type(answer) for answer in answers] == [CannotTell]
