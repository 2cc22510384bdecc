"""Which line some time belongs to: samples first, recorded calls next, nothing otherwise."""

from __future__ import annotations

from diagnose.measure import Measures
from diagnose.measure.lines.line_attribution import is_library
from diagnose.trace import StackFrame
from diagnose.trace.drawn import drawn


def owned(file: str, line: int) -> StackFrame:
    return StackFrame(file, line, "main")


def foreign(file: str) -> StackFrame:
    return StackFrame(file, 1, "f", owned=False)


def test_the_innermost_owned_frame_of_each_sample_counts() -> None:
    measures = Measures(
        drawn(
            """
            host: l           l
            gpu :  kk          k
            line:    aaaaaabbb
            """,
            stacks={"a": [foreign("torch/x.py"), owned("train.py", 41)], "b": [owned("train.py", 52)]},
        )
    )
    places = measures.places(measures.idle["python"])
    assert [(place.file, place.line, round(place.share or 0, 2)) for place in places] == [
        ("train.py", 41, 0.67),
        ("train.py", 52, 0.33),
    ]


def test_few_samples_inside_take_those_of_the_same_kind_outside() -> None:
    loading = [foreign("torch/utils/data/dataloader.py"), owned("train.py", 12)]
    measures = Measures(
        drawn(
            """
            load: w    w    w    w    w    w
            host:  ol   ol   ol   ol   ol   ol
            gpu :    kk   kk   kk   kk   kk   kk
            line:  i   i   i   i   i   i
            """,
            stacks={"i": loading},
        )
    )
    assert [place.line for place in measures.places(measures.idle["input"].within(0, 1), "input")] == [12]
    assert measures.places(measures.idle["input"].within(0, 1)) == ()


def test_without_samples_the_recorded_calls_name_the_function() -> None:
    measures = Measures(
        drawn(
            """
            host: l           l
            gpu :  kk          k
            call: mmmmmmmmmmmmmmm
            call:     nnnnnn
            """,
            frames={"m": "train.py(10): main", "n": "train.py(30): metrics"},
        )
    )
    stall = measures.idle["python"]
    assert [(place.line, place.function) for place in measures.places(stall)] == [(30, "metrics")]


def test_nothing_is_invented() -> None:
    measures = Measures(drawn("host: l     l\ngpu :  k     k"))
    assert measures.places(measures.idle["python"], "python") == ()


def test_what_belongs_to_python_or_a_package_is_not_the_users() -> None:
    assert is_library("torch/nn/modules/module.py")
    assert is_library("/usr/lib/python3.11/threading.py")
    assert is_library("threading.py")
    assert is_library("/venv/lib/python3.11/site-packages/x/y.py")
    assert is_library("/tmp/torchinductor_me/xd/cxdelfijtn27.py")
    assert not is_library("train.py")
    assert not is_library("/home/me/project/model.py")


def test_samples_that_show_elsewhere_in_the_window_do_not_help_out() -> None:
    # Line 82 waits for the device inside of a call; from its frames alone it could be Python just as well.
    measures = Measures(
        drawn(
            """
            host: ol ssssss        ol ssssss        ol ssssss
            gpu :   kkkkkkk          kkkkkkk          kkkkkkk
            line:     t t    m         t t    m         t t
            step:                 |                |                |
            """,
            stacks={"t": [owned("train.py", 82)], "m": [owned("train.py", 50)]},
        )
    )
    stalls = measures.idle["python"]
    assert len(stalls)
    assert [place.line for place in measures.places(stalls, "python")] == [50]
