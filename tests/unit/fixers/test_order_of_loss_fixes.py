"""Which fix of a slow loss has its turn first: the one that gives the most, as far as recordings tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.proposals import Proposal, next_up, proposals
from diagnose.engine import diagnose
from diagnose.fixer import Edits, example_request
from diagnose.model import Finding
from diagnose.plugins import Catalogue, load
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.readers import open_traces

ROOT = Path(__file__).parents[3]
BESIDE = "loss, beside what torch's own does"
BY_HAND = """
    host: altlilol.eltlalrl.ssssssssssssssssssss
    gpu :  bbbvvvvxxxxwwyyyyyyvvvvbbbbbbkkkkkkkk
    opt :                 O
"""
"""A gather that takes two columns is what torch's own loss has nothing for."""


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


def recorded(name: str) -> Trace:
    (trace,) = open_traces([ROOT / "sample_traces" / name])
    return trace


def written_out() -> Trace:
    kernels = {
        "b": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "x": "void at::native::cunn_SoftMaxForward<8, float, LogSoftMaxForward>",
        "y": "void at::native::cunn_SoftMaxBackward<8, float, LogSoftMaxBackward>",
        "v": "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
        "w": "void at::native::vectorized_gather_kernel",
    }
    ops = {
        "a": "aten::mm",
        "i": "aten::_log_softmax",
        "o": "aten::gather",
        "e": "aten::_log_softmax_backward_data",
        "t": "aten::_to_copy",
        "r": "aten::add",
    }
    return drawn(BY_HAND, repeat=4, ops=ops, kernels=kernels)


def found(trace: Trace, rule: str, catalogue: Catalogue) -> Finding:
    (one,) = [finding for finding in diagnose([trace], catalogue).findings if finding.rule == rule]
    return one


def turns(finding: Finding, catalogue: Catalogue) -> list[str]:
    """The fixers of a finding as they have their turns, where none is kept."""
    queue = [Candidate(finding, catalogue.fixers[name]) for name in finding.fixers]
    order = []
    while queue:
        name = next_up(queue).fixer.name
        order.append(name)
        queue = [one for one in queue if one.fixer.name != name]
    return order


def test_a_loss_by_hand_is_fused_before_it_is_compiled_and_torchs_own_gives_nothing(catalogue: Catalogue) -> None:
    finding = found(recorded("h200_unfused_loss"), "unfused-loss", catalogue)
    assert turns(finding, catalogue)[:2] == ["fuse-linear-cross-entropy", "fuse-cross-entropy"]
    assert "native-cross-entropy" not in finding.fixers
    (beside,) = [one.value for one in finding.evidence if one.measure == BESIDE]
    assert 0 < beside < 0.01 * finding.recoverable_ns


def test_an_odd_vocabulary_is_taken_together_with_its_loss_before_it_is_padded(catalogue: Catalogue) -> None:
    finding = found(recorded("h200_misaligned_vocabulary"), "misaligned-matmul", catalogue)
    assert turns(finding, catalogue) == ["fuse-linear-cross-entropy", "pad-vocabulary"]


def test_torchs_own_loss_promises_what_the_written_one_has_beside_it_and_comes_last(catalogue: Catalogue) -> None:
    finding = found(written_out(), "unfused-loss", catalogue)
    assert turns(finding, catalogue)[-1] == "native-cross-entropy"
    (beside,) = [one.value for one in finding.evidence if one.measure == BESIDE]
    queue = [Candidate(finding, catalogue.fixers[name]) for name in finding.fixers]
    promised = {one.fixer.name: one.predicted_ns for one in proposals(queue)}
    assert promised["native-cross-entropy"] == beside < finding.recoverable_ns
    assert promised["fuse-cross-entropy"] == finding.recoverable_ns


def test_no_fixer_promises_more_than_the_finding_has(catalogue: Catalogue) -> None:
    finding = found(written_out(), "unfused-loss", catalogue)
    native = catalogue.fixers["native-cross-entropy"]
    assert Proposal(native, (replace(finding, recoverable_ns=1),)).predicted_ns == 1
    assert Proposal(native, (replace(finding, evidence=()),)).predicted_ns == finding.recoverable_ns


PROGRAM = (
    "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(8, 19)\n\n"
    "    def forward(self, x):\n        return self.head(x)\n\n\n"
    "def loss_of(scores, y):\n    return F.cross_entropy(scores, y)\n\n\n"
    "model = Net()\nfor x, y in batches:\n    loss_of(model(x), y).backward()\n"
)
INSIDE = (
    PROGRAM.replace("def loss_of(scores, y):\n    return F.cross_entropy(scores, y)\n\n\n", "")
    .replace("(self, x):", "(self, x, y):")
    .replace("self.head(x)\n", "F.cross_entropy(self.head(x), y)\n")
    .replace("loss_of(model(x), y)", "model(x, y)")
)
UNSEEN = PROGRAM.replace("model = Net()", "model = make()")


@pytest.mark.parametrize("name", ["compile-model", "use-diagnose-backend"])
def test_a_model_is_compiled_for_a_loss_that_may_be_a_part_of_it(catalogue: Catalogue, name: str) -> None:
    answers = [catalogue.fixers[name].rewrite(example_request("unfused-loss", text)) for text in (INSIDE, PROGRAM)]
    assert [isinstance(answer, Edits) for answer in answers] == [True, False]
    assert isinstance(catalogue.fixers[name].rewrite(example_request("unfused-loss", UNSEEN)), Edits)
    assert isinstance(catalogue.fixers[name].rewrite(example_request("unfused-pointwise", PROGRAM)), Edits)


def test_a_model_is_not_compiled_for_a_loss_that_is_fused_already(catalogue: Catalogue) -> None:
    fused = catalogue.fixers["fuse-linear-cross-entropy"].rewrite(example_request("unfused-loss", INSIDE))
    assert isinstance(fused, Edits)
    assert "linear_cross_entropy" in fused.files["train.py"]
    for name in ("compile-model", "use-diagnose-backend", "compile-loss", "native-cross-entropy"):
        answer = catalogue.fixers[name].rewrite(example_request("unfused-loss", fused.files["train.py"]))
        assert not isinstance(answer, Edits), name


def test_a_part_of_a_finding_is_promised_as_that_part_of_the_step(catalogue: Catalogue) -> None:
    finding = found(written_out(), "unfused-loss", catalogue)
    names = ("native-cross-entropy", "fuse-cross-entropy")
    own, fused = (Proposal(catalogue.fixers[name], (finding,)) for name in names)
    assert fused.share == finding.share
    assert own.share == pytest.approx(finding.share * own.predicted_ns / finding.recoverable_ns)
    assert 0 < own.share < fused.share
