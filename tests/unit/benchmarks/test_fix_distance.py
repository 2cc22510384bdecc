"""The fixers bring ailing programs of the sick bay to what their healthy twins have, as text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from accuracy_programs import SICKBAY, programs
from fix_distance import Distance, distances, told

from diagnose.model import Decision

RECORDED = [Path(__file__).resolve().parents[3] / "sample_traces"]
CURED = {
    "exposed_copies": ("state-on-device", "torch.empty_like(weight) for weight in self.weights"),
    "graph_breaks": (
        "remove-graph-break",
        "attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n        return",
    ),
    "host_sync_masks": ("weigh-masked", 'F.smooth_l1_loss(inputs, targets, reduction="none")'),
    "over_checkpointing": ("checkpoint-fewer", "            x = block(x)\n"),
    # The twin compiles its loss; the operator that needs no logits has its turn before.
    "unfused_loss": ("fuse-linear-cross-entropy", "return linear_cross_entropy(features, self.head.weight, targets)"),
    "misaligned_vocabulary": ("fuse-linear-cross-entropy", "return linear_cross_entropy(features.flatten(0, -2), "),
}
"""Per program a fixer that edits it, and what must stand there then."""


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Distance]]:
    chosen = programs(list(CURED), SICKBAY)
    yield {distance.name: distance for distance in distances(RECORDED, chosen)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CURED)
def test_an_ailing_program_gets_what_its_twin_has_or_better(found: dict[str, Distance], name: str) -> None:
    fixer, code = CURED[name]
    distance = found[name]
    assert fixer in distance.kept, told(distance)
    assert code in distance.fixed
    assert code not in distance.found
    ast.parse(distance.fixed)


def test_no_fixer_fails(found: dict[str, Distance]) -> None:
    failed = [told(each) for each in found.values() for one in each.verdicts if one.decision is Decision.FAILED]
    assert not failed


@pytest.mark.slow
def test_a_fixed_program_runs_and_learns_the_same() -> None:
    (distance,) = distances(RECORDED, programs(["over_checkpointing"], SICKBAY), run=True)
    assert distance.losses is not None
    assert len(distance.losses[0]) == 3
    assert distance.kept[0] == "checkpoint-fewer", told(distance)
    assert distance.numbers.startswith("as promised ("), told(distance)
    assert distance.cured == "2/2 gone, 1/1 come"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_loss_without_logits_has_the_numbers_of_one_that_is_written_out() -> None:
    (distance,) = distances(RECORDED, programs(["unfused_loss"], SICKBAY), run=True)
    assert "fuse-linear-cross-entropy" in distance.kept, told(distance)
    assert distance.numbers.startswith("as promised (rounding"), told(distance)


def test_a_healthy_program_is_left_as_it_is() -> None:
    (distance,) = distances(RECORDED, programs(["over_checkpointing"], SICKBAY), arm="healthy")
    assert distance.kept == ()
