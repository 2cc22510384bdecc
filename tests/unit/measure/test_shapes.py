"""Which operator launched which work, and what its arguments were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.views.shapes import dtypes_of, parsed_dtypes, parsed_shapes, shapes_of
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import Ops

SAMPLES = Path(__file__).parents[3] / "sample_traces"


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("[[768,50257],[],[]]", ((768, 50257), (), ())),
        ("[]", ()),
        ("[[[2, 3], [4]], [5]]", (None, (5,))),
        ("[[2, -1]]", (None,)),
        ("[[true]]", (None,)),
        ("not shapes", None),
        ('{"a": 1}', None),
        ("[" * 100_000, None),
    ],
)
def test_shapes_are_read_from_their_text(text: str, shapes: object) -> None:
    assert parsed_shapes(text) == shapes


def test_formats_are_read_from_their_text() -> None:
    assert parsed_dtypes('["c10::BFloat16", "Scalar", ""]') == ("c10::BFloat16", "Scalar", "")
    assert parsed_dtypes("[1]") == ("",)
    assert parsed_dtypes("float") is None


def test_work_belongs_to_the_innermost_operator_around_its_launch() -> None:
    trace = drawn(
        """
        host: oxxloo
        gpu :    kkk
        """,
        ops={"x": "aten::mm"},
    )
    of_work = Measures(trace).op_of_work
    assert trace.names[trace.ops.name[of_work[0]]] == "aten::mm"


def _with_ids(picture: str, of_work: int) -> tuple[list[str], Trace]:
    """A drawn trace in which `aten::op` has the id 7, `aten::mm` 8, and the work the id given; and its operators."""
    trace = drawn(picture, ops={"x": "aten::mm"})
    names = [trace.names[name] for name in trace.ops.name.tolist()]
    ids = np.array([7 if name == "aten::op" else 8 for name in names], np.int64)
    ops, device = replace(trace.ops, external_id=ids), replace(trace.device, external_id=np.array([of_work], np.int64))
    return names, replace(trace, ops=ops, device=device)


def test_an_id_goes_before_the_place_of_the_launch() -> None:
    names, trace = _with_ids(
        """
        host: oooo  xl
        gpu :        kkk
        """,
        7,
    )
    # The profiler lets an operator that began earlier run on until after the launch.
    ends = np.where(trace.ops.external_id == 7, 9_000_000, trace.ops.end_ns)
    longer = replace(trace, ops=replace(trace.ops, end_ns=ends))
    assert names[Measures(longer).op_of_work[0]] == "aten::op"


def test_ids_of_operators_that_were_not_running_at_the_launch_are_not_believed() -> None:
    names, trace = _with_ids(
        """
        host: oooo xl
        gpu :       kkk
        """,
        7,
    )
    assert names[Measures(trace).op_of_work[0]] == "aten::mm"


def test_a_trace_without_operators_or_shapes_has_none() -> None:
    trace = drawn("gpu : kk")
    assert Measures(trace).op_of_work.tolist() == [-1]
    assert shapes_of(trace, -1) is None
    bare = replace(trace, ops=Ops.build({"start_ns": [0], "end_ns": [1]}))
    assert shapes_of(bare, 0) is None
    assert dtypes_of(bare, 0) is None


def test_products_of_a_recording_are_launched_by_operators_with_two_matrices() -> None:
    measures = Measures(open_traces([SAMPLES / "h200_naive_gpt"])[0])
    trace = measures.trace
    products = [
        op
        for op in np.unique(measures.op_of_work).tolist()
        if op >= 0 and trace.names[trace.ops.name[op]] == "aten::mm"
    ]
    assert len(products) > 50
    for op in products:
        shapes, dtypes = shapes_of(trace, op), dtypes_of(trace, op)
        assert shapes is not None and dtypes == ("float", "float")
        (_, inner), (same, _) = shapes[0] or (), shapes[1] or ()
        assert inner == same
