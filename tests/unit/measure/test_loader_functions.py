"""Functions and annotations that programs without a `DataLoader` make their batches in."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.views.loader_functions import batch_frames, makes_batches
from diagnose.measure.views.stacks import cause_of
from diagnose.rule import Trace, drawn
from diagnose.trace import StackFrame


@pytest.mark.parametrize(
    "function",
    [
        "get_batch",
        "get_train_batch",
        "next_batch",
        "load_next_batch",
        "fetch_samples",
        "sample_batch",
        "make_batch",
        "get_batch_samples",
        "load_data",
        "batches",
        "batch_iterator",
        "data_generator",
        "infinite_loader",
        "train_loader",
        "collate_fn",
        "__next__",
    ],
)
def test_a_function_that_is_called_so_makes_batches(function: str) -> None:
    assert makes_batches(function)


@pytest.mark.parametrize(
    "function",
    [
        "train_batch",
        "train_generator",
        "generate_samples",
        "train_on_batch",
        "process_batch",
        "forward_batch",
        "eval_batch",
        "batch_norm",
        "get_batch_size",
        "load_state_dict",
        "load_checkpoint",
        "get_data_parallel_rank",
        "generate",
        "read",
        "step",
    ],
)
def test_a_function_that_works_on_batches_does_not(function: str) -> None:
    assert not makes_batches(function)


def test_of_the_frameworks_calls_only_the_loaders_make_batches() -> None:
    calls = {
        "a": "torch/optim/optimizer.py(30): __next__",
        "b": "torch/utils/data/dataloader.py(700): __next__",
        "c": "project/data.py(12): next_batch",
        "d": "nn.Module: Batches_0",
    }
    trace = drawn("call: abcd", frames=calls)
    assert np.flatnonzero(batch_frames(trace)).tolist() == [1, 2]


def test_a_stack_in_a_function_that_makes_batches_shows_input_even_while_it_reads_files() -> None:
    reads = StackFrame("/lib/python3/gzip.py", 300, "read", owned=False)
    makes = StackFrame("train.py", 24, "get_batch", owned=True)
    assert cause_of((reads, makes)) == "input"
    assert cause_of((reads, StackFrame("train.py", 80, "save", owned=True))) == "io"
    assert cause_of((StackFrame("lib.py", 24, "get_batch", owned=False),)) is None


def test_what_every_step_of_an_optimizer_passes_is_no_compiler() -> None:
    """torch's optimizers call `torch._dynamo.graph_break()` in each step, whether anything is compiled or not."""
    mark = StackFrame("/lib/torch/_dynamo/decorators.py", 850, "graph_break", owned=False)
    step = StackFrame("/lib/torch/optim/optimizer.py", 79, "_use_grad", owned=False)
    compiler = StackFrame("/lib/torch/_dynamo/convert_frame.py", 1500, "_compile", owned=False)
    assert cause_of((mark, step)) is None
    assert cause_of((mark, compiler, step)) == "compile"


WITHOUT_A_LOADER = """
    {lane}: bbbbbbbbbb
    host: oooooooooool
    gpu :             kkkkkkkk
    step:                     |
"""


def recorded() -> Trace:
    return drawn(WITHOUT_A_LOADER.format(lane="call"), repeat=4, frames={"b": "train.py(24): get_batch"})


def sampled() -> Trace:
    return drawn(WITHOUT_A_LOADER.format(lane="line"), repeat=4, stacks={"b": [("train.py", 26, "get_batch")]})


@pytest.mark.parametrize("trace", [recorded(), sampled()], ids=["recorded calls", "samples"])
def test_operators_that_make_a_batch_are_input_not_launches(trace: Trace) -> None:
    diagnosis = diagnose([trace], plugins.load())
    first = diagnosis.findings[0]
    assert first.rule == "input-bound"
    assert first.where[0].function == "get_batch"
    assert "no loader" in first.summary
    # Between two samples nobody saw where the function ended.
    others = sum(found.recoverable_ns for found in diagnosis.findings[1:])
    assert others <= first.recoverable_ns / 4


def test_a_library_that_loads_is_a_loader() -> None:
    picture = WITHOUT_A_LOADER.format(lane="call")
    trace = drawn(picture, repeat=4, frames={"b": "nvidia/dali/plugin/pytorch.py(24): __next__"})
    first = diagnose([trace], plugins.load()).findings[0]
    assert first.rule == "input-bound"
    assert "the loader is slower than training" in first.summary


def test_waits_for_the_device_in_such_a_function_are_no_input() -> None:
    trace = drawn(
        """
        call:   bbbbbbbb
        host: olssssssol
        gpu :   kkkk    kk
        step:             |
        """,
        repeat=4,
        frames={"b": "train.py(24): get_batch"},
    )
    measures = Measures(trace)
    waits = measures.waits
    assert waits.total_ns
    assert (measures.idle["input"] & waits).total_ns == 0


ROLLOUT = """
    {lane}: ssssssssssssssssssss
    host: olololololololololol{waits}
    gpu :  k k k k k k k k k k{work}
    step:                         |
"""


@pytest.mark.parametrize("waits", ["", "ssss"], ids=["without a wait", "with a wait"])
def test_a_function_that_mostly_launches_runs_a_model_whatever_its_name(waits: str) -> None:
    picture = ROLLOUT.format(lane="call", waits=waits, work="k" * len(waits))
    picture = picture.replace("s" * 20, "s" * (20 + len(waits)), 1)
    trace = drawn(picture, unit_ns=50_000, repeat=4, frames={"s": "rl.py(24): sample_batch"})
    measures = Measures(trace)
    assert measures.idle["input"].total_ns == 0
    assert measures.idle["dispatch"].total_ns > 0


def test_a_sampler_sees_it_as_well() -> None:
    picture = ROLLOUT.format(lane="line", waits="", work="")
    trace = drawn(picture, unit_ns=50_000, repeat=4, stacks={"s": [("rl.py", 26, "sample_batch")]})
    idle = Measures(trace).idle
    assert idle["dispatch"].total_ns > 0
    assert idle["input"].total_ns < idle["dispatch"].total_ns / 10


def test_a_batch_that_a_few_kernels_finish_is_a_batch() -> None:
    trace = drawn(
        """
        call: bbbbbbbbbbb
        host: ooooooooolol
        gpu :           k kkkkkk
        step:                   |
        """,
        repeat=4,
        frames={"b": "train.py(24): get_batch"},
    )
    measures = Measures(trace)
    assert measures.idle["input"].total_ns >= 8_000_000 * 3


def test_a_loader_that_marks_its_waits_is_believed_before_samples() -> None:
    trace = drawn(
        """
        load: ww
        line:   bbbbbb
        host:   oooooool
        gpu :           kkkkkkkk
        step:                   |
        """,
        repeat=4,
        stacks={"b": [("train.py", 26, "get_batch")]},
    )
    measures = Measures(trace)
    assert measures.per_step(measures.idle["input"]).tolist()[1:] == [2_000_000] * (measures.step_count - 1)
