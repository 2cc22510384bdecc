"""What will weigh once other ailments are gone: told from the recording in which they still stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose.compose.proposals.candidates import candidates
from diagnose.compose.search.bundle import gather
from diagnose.compose.search.latent_findings import with_foreseen
from diagnose.compose.stack.run_context import RunContext
from diagnose.compose.stack.stack import Stack
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import Confidence, Finding, Gate, Site
from diagnose.plugins import Catalogue, load
from diagnose.program import Program
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces
from diagnose.what_if import step_without

ROOT = Path(__file__).parents[3]
NAIVE = ROOT / "sample_traces" / "h200_naive_gpt"
PROGRAM = ROOT / "benchmarks" / "sickbay" / "naive_gpt" / "train.py"
_KERNELS = {"x": "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)"}
_STEP = """
    host: i.
    gpu : {}
    opt :  O
"""


def products(columns: int, recorded: str = "float", **more: Any) -> Trace:
    """Steps of one product over so many columns on the ordinary units, as long as all of the step."""
    shape = f"[[], [1024, 512], [512, {columns}]]"
    return drawn(
        _STEP.format("x" * 40),
        repeat=4,
        ops={"i": "aten::addmm"},
        kernels=_KERNELS,
        shapes={"i": (shape, f'["{recorded}", "{recorded}", "{recorded}"]')},
        device_names=("NVIDIA H200",),
        **more,
    )


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


def test_an_odd_vocabulary_is_no_finding_in_plain_fp32(catalogue: Catalogue) -> None:
    rules = {finding.rule for finding in diagnose([products(50257)], catalogue).findings}
    assert "fp32-matmul" in rules
    assert "misaligned-matmul" not in rules


def test_workers_that_keep_up_now_are_foreseen_where_a_shorter_step_would_wait_for_them(catalogue: Catalogue) -> None:
    """Four workers that each compute for three quarters of a step: none is shorter than that."""
    workers = Site("DataLoader", "train.py", 3, "main", {"num_workers": 4})
    trace = products(512, counted={"host.workers_cpu": [300.0] * 3, "host.workers": [4.0] * 3}, sites=[workers])
    assert "input-bound" not in {finding.rule for finding in diagnose([trace], catalogue).findings}
    measures = Measures(trace)
    left_ns = step_without(products(512), catalogue, {"fp32-matmul"}).step_ns
    found = step_without(trace, catalogue, {"fp32-matmul"})
    (loader,) = (finding for finding in found.findings if finding.rule == "input-bound")
    assert found.step_ns == pytest.approx(0.75 * measures.total_ns / measures.step_count, rel=0.01)
    assert loader.recoverable_ns == pytest.approx(found.step_ns - left_ns, rel=0.01)
    assert loader.fixers == ("loader-workers",)


def test_it_is_foreseen_where_tensor_cores_will_take_the_products(catalogue: Catalogue) -> None:
    trace = products(50257)
    found = step_without(trace, catalogue, {"fp32-matmul"})
    (hidden,) = [finding for finding in found.findings if finding.rule == "misaligned-matmul"]
    assert hidden.fixers == ("fuse-linear-cross-entropy", "pad-vocabulary")
    assert hidden.confidence is Confidence.HINT
    assert hidden.share == pytest.approx(0.5, abs=0.05)  # the product is all of the step, and half of it would be left
    before_ns = diagnose([trace], catalogue).steps.mean_ns
    assert before_ns is not None
    assert hidden.recoverable_ns < found.step_ns < before_ns / 5


@pytest.mark.parametrize("trace", [products(50304), products(10), products(50257, "c10::BFloat16")])
def test_aligned_and_small_sizes_are_not_foreseen(trace: Trace, catalogue: Catalogue) -> None:
    found = step_without(trace, catalogue, {"fp32-matmul"})
    assert found.step_ns > 0
    assert "misaligned-matmul" not in {finding.rule for finding in found.findings}


def test_nothing_is_foreseen_of_what_is_not_there(catalogue: Catalogue) -> None:
    assert step_without(products(50257), catalogue, {"host-sync"}).findings == ()
    assert step_without(products(50257), catalogue, set()).findings == ()
    assert step_without(Trace("empty"), catalogue, {"fp32-matmul"}).findings == ()


def test_a_copy_that_waited_unseen_weighs_in_what_is_left_of_a_real_step(catalogue: Catalogue) -> None:
    (trace,) = open_traces([NAIVE])
    diagnosis = diagnose([trace], catalogue)
    gone = {finding.rule for finding in diagnosis.findings}
    found = step_without(trace, catalogue, gone)
    foreseen = {finding.rule: finding for finding in found.findings}
    assert gone.isdisjoint(foreseen)
    assert diagnosis.steps.mean_ns is not None
    assert found.step_ns < diagnosis.steps.mean_ns / 4
    assert {"pageable-copies", "input-bound", "misaligned-matmul", "unfused-loss"} <= foreseen.keys()
    for finding in found.findings:
        assert finding.share == pytest.approx(finding.recoverable_ns / found.step_ns, rel=0.01)
    assert found.findings == tuple(sorted(found.findings, key=lambda one: -one.recoverable_ns))


@pytest.mark.slow
def test_output_layer_and_loss_of_a_real_program_are_taken_together_in_its_first_common_trial(
    catalogue: Catalogue,
) -> None:
    """Not padded: the operator that takes both cuts an odd vocabulary itself, and what pads would be in its way."""
    (trace,) = open_traces([NAIVE])
    program = Program.parse([str(PROGRAM)])
    file = str(PROGRAM)
    sites = tuple(replace(site, file=file) for site in trace.sites)
    stack = Stack.of(program, RunContext({file: PROGRAM.read_text()}, sites, trace.facts, (trace,)))

    def here(found: tuple[Finding, ...]) -> list[Finding]:
        places = [tuple(replace(place, file=file) for place in one.where) for one in found]
        return [replace(one, where=where) for one, where in zip(found, places, strict=True)]

    queue = list(candidates(program, here(diagnose([trace], catalogue).findings), catalogue))
    bundle = gather(stack, queue, frozenset(Gate))
    assert {"autocast-bf16", "compile-model"} <= set(bundle.names)
    foresight = step_without(trace, catalogue, bundle.rules)
    foresight = replace(foresight, findings=tuple(here(foresight.findings)))
    grown = with_foreseen(bundle, stack, foresight, program, catalogue, [one.fixer for one in queue])
    assert {"fuse-linear-cross-entropy", "nonblocking-copies"} <= grown.foreseen
    assert "pad-vocabulary" not in grown.names
    written = grown.stack.texts[file]
    assert "                loss = model(inputs, targets=targets)\n" in written  # under autocast
    assert "loss = model(inputs, targets=targets)" in grown.harmless.texts[file]
    compile(written, file, "exec")
