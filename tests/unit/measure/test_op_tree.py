"""The operator tree: what hangs on which operator, in small traces written down and in real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose.measure.views.op_tree import op_tree
from diagnose.trace import Thread, Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import DeviceWork, Frames, HostCalls, Ops

ROOT = Path(__file__).resolve().parents[4] / "shared" / "traces"
HTA = ROOT / "facebookresearch__HolisticTraceAnalysis" / "tests" / "data"

NAMES = (
    "aten::linear",
    "aten::addmm",
    "autograd::engine::evaluate_function: AddmmBackward0",
    "AddmmBackward0",
    "kernel",
    "cudaLaunchKernel",
    "nn.Module: Net_0",
    "nn.Module: Linear_1",
    "train.py(4): main",
)
TRACE = Trace(
    source="written down",
    names=NAMES,
    threads=(Thread(1, 1), Thread(1, 2)),
    ops=Ops.build(
        {
            "start_ns": [10, 12, 100, 102],
            "end_ns": [30, 25, 140, 130],
            "name": [0, 1, 2, 3],
            "thread": [0, 0, 1, 1],
            "external_id": [1, 2, 3, 4],
            "sequence": [7, 7, 7, 7],
            "forward_thread": [-1, -1, 1, 1],
        }
    ),
    calls=HostCalls.build(
        {
            "start_ns": [14, 26, 50, 105],
            "end_ns": [15, 27, 51, 106],
            "name": [5] * 4,
            "thread": [0, 0, 0, 1],
            "correlation": [1, 2, 3, 4],
        }
    ),
    device=DeviceWork.build(
        {
            "start_ns": [20, 40, 60, 110],
            "end_ns": [24, 45, 61, 120],
            "name": [4] * 4,
            "correlation": [1, 2, 3, 4],
            "external_id": [-1, -1, -1, 3],
        }
    ),
    frames=Frames.build(
        {"start_ns": [0, 5, 9], "end_ns": [90, 80, 35], "name": [8, 6, 7], "thread": [0, 0, 0]},
    ),
)


def test_work_belongs_to_the_operator_of_its_id_or_around_its_launch() -> None:
    tree = op_tree(TRACE)
    assert tree.of_call.tolist() == [1, 0, -1, 3]
    assert tree.of_work.tolist() == [1, 0, -1, 2]


def test_device_time_rolls_up() -> None:
    assert op_tree(TRACE).device_ns.tolist() == [9, 4, 10, 0]


def test_backward_operators_know_the_forward_operator_that_took_their_number() -> None:
    tree = op_tree(TRACE)
    assert tree.backward.tolist() == [False, False, True, True]
    assert tree.forward.tolist() == [-1, -1, 1, 1]


def test_modules_are_found_around_operators_and_through_their_forward() -> None:
    tree = op_tree(TRACE)
    assert [tree.module_path(row) for row in range(4)] == [("Net_0", "Linear_1")] * 4


def test_a_trace_without_operators_has_an_empty_tree() -> None:
    tree = op_tree(Trace(source="", names=NAMES, threads=TRACE.threads, calls=TRACE.calls, device=TRACE.device))
    assert tree.of_work.tolist() == [-1] * 4
    assert (len(tree.device_ns), len(tree.forward), len(tree.module)) == (0, 0, 0)


@pytest.mark.parametrize(
    "path",
    [
        HTA / "nccl_parser_config" / "nccl_data.json.gz",
        HTA / "ns_resolution_trace" / "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        HTA / "amd_trace" / "mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    ],
    ids=lambda path: path.name[:20],
)
def test_ids_and_launches_agree_in_real_traces(path: Path) -> None:
    if not path.is_file():
        pytest.skip("this trace is not in the collection")
    (trace,) = open_traces([path])
    tree = op_tree(trace)
    assert int(tree.nesting.self_ns.min()) >= 0
    roots = tree.nesting.parent == -1
    assert int(tree.nesting.self_ns.sum()) == int((tree.nesting.end_ns - tree.nesting.start_ns)[roots].sum())
    assert int(tree.device_ns[roots].sum()) == int(
        (trace.device.end_ns - trace.device.start_ns)[tree.of_work >= 0].sum()
    )
    by_id = trace.device.external_id > 0
    assert by_id.sum() > 10
    unnamed = Trace(**{**vars(trace), "device": trace.device.where(slice(None))})
    unnamed.device.external_id[:] = -1
    by_launch = op_tree(unnamed).of_work
    both = by_id & (by_launch >= 0) & (tree.of_work >= 0)
    assert np.mean(by_launch[both] == tree.of_work[both]) > 0.95
    named = tree.backward & (tree.forward >= 0)
    assert (trace.ops.start_ns[tree.forward[named]] <= trace.ops.start_ns[named]).all()
