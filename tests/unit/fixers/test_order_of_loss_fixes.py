"""Which fix of a slow loss has its turn first: the one that gives the most, as far as recordings tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.proposals import next_up
from diagnose.engine import diagnose
from diagnose.fixer import Edits, example_request
from diagnose.model import Finding, Site
from diagnose.plugins import Catalogue, load
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


def recorded(name: str) -> Trace:
    (trace,) = open_traces([ROOT / "sample_traces" / name])
    return trace


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


def test_a_loss_by_hand_is_fused_before_it_is_compiled(catalogue: Catalogue) -> None:
    finding = found(recorded("h200_unfused_loss"), "unfused-loss", catalogue)
    assert turns(finding, catalogue)[:2] == ["fuse-linear-cross-entropy", "fuse-cross-entropy"]


def test_an_odd_vocabulary_is_taken_together_with_its_loss_before_it_is_padded(catalogue: Catalogue) -> None:
    finding = found(recorded("h200_misaligned_vocabulary"), "misaligned-matmul", catalogue)
    assert turns(finding, catalogue) == ["fuse-linear-cross-entropy", "pad-vocabulary"]


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
    for name in ("compile-model", "use-diagnose-backend"):
        answer = catalogue.fixers[name].rewrite(example_request("unfused-loss", fused.files["train.py"]))
        assert not isinstance(answer, Edits), name


def test_beside_a_compiler_the_graph_is_rewritten_for_a_loss_alone(catalogue: Catalogue) -> None:
    """A compiler fuses all else by itself: the program would import the package for nothing."""
    compiled = INSIDE.replace("model = Net()", "model = torch.compile(Net())")
    sites = [Site("compile", "train.py", compiled.splitlines().index("model = torch.compile(Net())") + 1)]
    rewrite = catalogue.fixers["use-diagnose-backend"].rewrite
    assert isinstance(rewrite(example_request("unfused-loss", compiled, sites=sites)), Edits)
    for rule in ("unfused-pointwise", "memory-bound"):
        assert rewrite(example_request(rule, compiled, sites=sites)) is None
