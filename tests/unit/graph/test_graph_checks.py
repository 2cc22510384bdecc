"""Before a site is rewritten, it is checked and timed: what that leaves as it was, and when it leaves a site alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from graph_models import (
    CLASSES,
    LLAMA_SITES,
    TOKENS,
    Llama,
    batch,
    compile_all,
    fresh,
    loss_and_gradients,
    new_graphs,
    one_rank,
    rewritten,
)
from torch import Tensor, nn
from torch.nn import functional

from diagnose import graph
from diagnose.graph import account, decision, equivalence, timing
from diagnose.graph.account import SiteRecord
from diagnose.graph.backend import _watched
from diagnose.graph.patterns import PATTERNS, swiglu
from diagnose.graph.timing import Times

__all__ = ["fresh", "one_rank"]
# Dynamo looks at it, and hides the warning where warnings are no errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


def test_checking_leaves_buffers_random_numbers_and_inputs_as_they_were() -> None:
    """Batch norm counts its batches and dropout draws: once a step, not once more beforehand."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.BatchNorm1d(16)
            self.head = nn.Linear(16, 11)

        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            x += 1.0
            return functional.cross_entropy(self.head(functional.dropout(self.scale(x), 0.5)), targets)

    outcomes, sites = [], []
    for compiles in (False, True):
        torch.manual_seed(2)
        model = Noisy()
        x, targets = torch.randn(6, 16), torch.randint(0, 11, (6,))
        run = compile_all(model) if compiles else model
        losses = []
        for _ in range(2):
            loss, graphs = new_graphs(partial(run, x, targets))
            losses.append(loss.detach())
            sites += rewritten(graphs)
        outcomes.append([*losses, *model.buffers(), x, torch.random.get_rng_state()])
    assert sites == ["linear-cross-entropy"]
    torch.testing.assert_close(outcomes[0], outcomes[1])
    assert int(outcomes[1][4]) == 2, "batches counted"


def test_a_graph_that_writes_into_parts_of_a_parameter_is_not_run_beforehand() -> None:
    """They are not copied, and would be changed twice in the first step."""

    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.average = nn.Parameter(torch.ones(2, 16), requires_grad=False)
            self.head = nn.Linear(16, 11)

        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            with torch.no_grad():
                self.average[0].mul_(0.5)
                self.average.data.view(-1)[16:].mul_(0.25)
            return functional.cross_entropy(self.head(x), targets)

    model = Averaging()
    _, graphs = new_graphs(lambda: compile_all(model)(torch.randn(6, 16), torch.randint(0, 11, (6,))))
    assert rewritten(graphs) == [] and "writes into a parameter" in str(graphs[0])
    assert model.average[:, 0].tolist() == [0.5, 0.25]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.usefixtures("one_rank")
def test_a_graph_in_which_ranks_wait_for_each_other_is_not_run_beforehand() -> None:
    """Another rank may have no site to check, and would not take part."""

    def gated(gate: Tensor, up: Tensor) -> Tensor:
        torch.distributed.all_reduce(up)
        return functional.silu(gate) * up

    gate, up = torch.randn(4, 6), torch.randn(4, 6)
    found, graphs = new_graphs(lambda: compile_all(gated)(gate, up))
    torch.testing.assert_close(found, functional.silu(gate) * up)
    assert rewritten(graphs) == [] and "other ranks" in str(graphs[0])


@pytest.mark.parametrize("filling", [-1e4, -1e9, float("-inf")])
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_rows_that_a_later_mask_leaves_nothing_of(filling: float, inner: str) -> None:
    """The first call, on which a site is checked, has none: a finite filling leaves equal shares, and no gradient."""

    def masked(scores: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((scores * 0.5).masked_fill(mask, filling), dim=-1)

    scores, mask = torch.randn(2, 3, 5, 5, requires_grad=True), torch.eye(5, dtype=torch.bool).repeat(2, 1, 1, 1)
    compiled = compile_all(masked, inner)
    _, graphs = new_graphs(lambda: compiled(scores, mask))
    assert rewritten(graphs) == ["masked-softmax"]
    mask[0, 0, 2] = True
    found, expected = compiled(scores, mask), masked(scores, mask)
    cotangent = torch.randn_like(expected)
    results = [[shares, *torch.autograd.grad(shares, scores, cotangent)] for shares in (found, expected)]
    if filling == float("-inf"):
        results[1] = [part.nan_to_num() for part in results[1]]  # As the documentation says.
    torch.testing.assert_close(*results)


def test_an_operator_that_errs_is_refused_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong gradient alone is enough: the value is right."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
            ctx.save_for_backward(gate, up)
            return functional.silu(gate) * up

        @staticmethod
        def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor, Tensor]:
            gate, up = ctx.saved_tensors
            return by_out * up, by_out * functional.silu(gate)

    def wrong(gate: Tensor, up: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        result: Tensor = Wrong.apply(gate, up)  # type: ignore[no-untyped-call]  # torch's
        return result.to(out_dtype)

    monkeypatch.setattr(swiglu, "fused", wrong)
    model = Llama()
    inputs = batch()
    found, graphs = new_graphs(lambda: loss_and_gradients(compile_all(model), model, inputs))
    left = [site for site in graphs[0].sites if site.left]
    assert [site.pattern for site in left] == ["swiglu", "swiglu"]
    assert all("it errs by" in site.left for site in left)
    torch.testing.assert_close(found, loss_and_gradients(model, model, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fused", "reason"),
    [
        (lambda gate, up, *, out_dtype: (gate * up).to(out_dtype).double(), "another dtype or shape"),
        (lambda gate, up, *, out_dtype: (gate * up * float("nan")).to(out_dtype), "it errs by nan"),
        (lambda gate, up, *, out_dtype: gate @ up, "its check failed: RuntimeError"),  # noqa: ARG005
    ],
)
def test_what_does_not_do_the_same_is_refused(
    fused: Callable[..., Tensor], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swiglu, "fused", fused)

    def program(gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up

    inputs = torch.randn(4, 6), torch.randn(4, 6)
    found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert reason in graphs[0].sites[0].left
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)


def test_sites_that_are_alike_are_timed_once_and_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([99, 99, 99, 99, 30, 10, 20, 12, 40, 11, 30, 90, 30, 11])  # two rounds warm up
    monkeypatch.setattr(timing, "_spent_ns", lambda *_: next(spent))
    monkeypatch.setattr(decision, "_why_left", lambda *_: "")
    inputs = torch.randn(4, 6), torch.randn(4, 6)

    def program(gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(functional.silu(gate) * up) * up

    compiled = torch.compile(program, backend="diagnose", options={"inner": "eager"})
    _, graphs = new_graphs(lambda: compiled(*inputs))
    assert [(site.left, site.found_ns, site.fused_ns) for site in graphs[0].sites] == [("", 30, 11)] * 2
    assert next(spent, None) is None, "the clock was asked for one of the two"


def test_the_peak_of_the_first_steps_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 << 30)
    number = account.entered("cuda:0", "inductor", [], "", prints=False)
    watched = _watched(lambda x: x + 1, torch.device("cuda:0"), number, False)
    peaks = []
    for step in range(5):
        assert watched(step) == step + 1
        peaks.append(graph.report().graphs[number - 1].peak_bytes)
    assert peaks == [None, None, None, 3 << 30, 3 << 30]
    assert str(graph.report()).endswith("peak of its first steps: 3.0 GiB allocated")


def test_the_report_holds_estimates_beside_what_was_measured() -> None:
    site = SiteRecord(
        "linear-cross-entropy", "/model.py", 7, "head", "", 9 << 30, 2 << 30, 0.25, 3 << 29, 40_000_000, 42_000_000
    )
    assert str(site) == (
        "/model.py:7 in head  linear-cross-entropy: rewritten; should save 9.0 GiB; on 25% of the rows 1.5 GiB, "
        "measured 2.0 GiB; forward and backward 40.00 ms, fused 42.00 ms"
    )


def test_a_slower_operator_is_left_unless_it_saves_memory() -> None:
    times = Times(found_ns=1_000_000, fused_ns=1_200_000)
    patterns = {pattern.name: pattern for pattern in PATTERNS}
    assert "1.20 times as long" in decision._slower(patterns["swiglu"], times)
    assert decision._slower(patterns["linear-cross-entropy"], times) == ""
    assert decision._slower(patterns["linear-cross-entropy"], Times(1_000_000, 1_600_000)) != ""
    assert decision._slower(patterns["swiglu"], Times(1_200_000, 1_000_000)) == ""


def test_a_large_site_is_checked_on_a_part_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "MOST_ELEMENTS", 4 * TOKENS * CLASSES)
    model = Llama()
    _, graphs = new_graphs(lambda: compile_all(model)(*batch(16)))
    shares = {site.pattern: site.checked_share for site in graphs[0].sites}
    assert shares["linear-cross-entropy"] == 0.25
    assert shares["swiglu"] == 1.0
    assert rewritten(graphs) == LLAMA_SITES


def test_a_graph_that_cannot_be_read_or_run_beforehand_is_compiled_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up

    def fails(*_: object) -> None:
        raise KeyError("a node")

    inputs = torch.randn(4, 6), torch.randn(4, 6)
    with monkeypatch.context() as patched:
        patched.setattr(decision, "visit_sites", fails)
        found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert graphs[0].note == "the graph could not be run beforehand: KeyError"
    assert [site.left for site in graphs[0].sites] == ["it could not be checked"]
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)

    torch.compiler.reset()
    monkeypatch.setattr(decision, "sites_of", fails)
    found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert graphs[0].note == "nothing was rewritten: the graph could not be read (KeyError: 'a node')"
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)
