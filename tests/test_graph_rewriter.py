"""The backend `diagnose` on whole models: what it rewrites, that numbers stay, and when it leaves things alone."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from diagnose import graph
from diagnose.graph import account, deciding, equivalence, timing
from diagnose.graph.account import GraphRecord, SiteRecord
from diagnose.graph.backend import _watched
from diagnose.graph.patterns import PATTERNS, swiglu
from diagnose.graph.timing import Times

# Dynamo looks at it, and hides the warning where warnings are no errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEADS, CLASSES, TOKENS = 32, 4, 64, 8


class WrittenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = WrittenNorm(), WrittenNorm()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).split(WIDTH, dim=-1)
        )
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.second(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    angles: Tensor

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.norm = WrittenNorm()
        self.head = nn.Linear(WIDTH, classes, bias=False)
        self.register_buffer("angles", torch.arange(TOKENS)[:, None] / torch.arange(1, 5).repeat(2))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.angles.cos(), self.angles.sin())
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1), ignore_index=3)


class GPT(nn.Module):
    """Layer norms, tied weights, logits returned with the loss."""

    def __init__(self, returns_logits: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.units = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH), nn.Dropout(0.1)) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.embedding.weight
        self.returns_logits = returns_logits

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        x = self.embedding(tokens)
        for norm, unit in zip(self.norms[:2], self.units, strict=True):
            x = x + unit(norm(x))
        logits = self.head(self.norms[2](x))
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return (logits, loss) if self.returns_logits else loss


class ViT(nn.Module):
    """Batch norm of patches, a class token's layer norm, a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.scale = nn.BatchNorm2d(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        x = self.scale(self.patches(images)).flatten(2).transpose(1, 2)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return functional.cross_entropy(self.head(x.mean(1)), targets)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def batch(rows: int = 2) -> tuple[Tensor, Tensor]:
    tokens, targets = torch.randint(0, CLASSES, (2, rows, TOKENS))
    return tokens, targets


def new_graphs(call: Callable[[], Any]) -> tuple[Any, tuple[GraphRecord, ...]]:
    before = len(graph.report().graphs)
    result = call()
    return result, graph.report().graphs[before:]


def rewritten(graphs: tuple[GraphRecord, ...]) -> list[str]:
    return sorted(site.pattern for each in graphs for site in each.sites if site.rewritten)


def compile_all(model: Any, inner: str = "eager", **more: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(
        model, backend="diagnose", options={"inner": inner, "rewrite": "all"}, **more
    )
    return compiled


def loss_and_gradients(run: Callable[..., Any], model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    result = run(*inputs)
    loss = result[-1] if isinstance(result, tuple) else result
    loss.backward()
    return [loss.detach(), *(part.grad.clone() for part in model.parameters() if part.grad is not None)]


LLAMA_SITES = ["add-rms-norm"] * 4 + ["linear-cross-entropy"] + ["rotary"] * 2 + ["swiglu"] * 2
MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "llama": (Llama, LLAMA_SITES),
    "gpt": (GPT, ["add-layer-norm"] * 2 + ["linear-cross-entropy"]),
    "gpt that returns logits": (lambda: GPT(True), ["add-layer-norm"] * 2 + ["cross-entropy"]),
    "vit": (ViT, ["add-layer-norm", "linear-cross-entropy"]),
}


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_keeps_its_loss_and_its_gradients(name: str, inner: str) -> None:
    build, sites = MODELS[name]
    model = build()
    images = (torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,)))
    inputs = images if name == "vit" else batch()
    expected = loss_and_gradients(model, model, inputs)
    found, graphs = new_graphs(lambda: loss_and_gradients(compile_all(model, inner), model, inputs))
    assert rewritten(graphs) == sites
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_of_a_librarys() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=CLASSES, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tokens, _ = batch()
    compiled = compile_all(model, "aot_eager")
    expected = loss_and_gradients(lambda tokens: model(input_ids=tokens, labels=tokens).loss, model, (tokens,))
    found, graphs = new_graphs(
        lambda: loss_and_gradients(lambda tokens: compiled(input_ids=tokens, labels=tokens).loss, model, (tokens,))
    )
    assert rewritten(graphs) == (
        ["add-rms-norm"] * 4 + ["cross-entropy"] + ["masked-softmax"] * 2 + ["rotary"] * 2 + ["swiglu"] * 2
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for CPUs")
def test_inductor_takes_the_rest() -> None:
    model = GPT()
    model.eval()
    inputs = batch()
    expected = loss_and_gradients(model, model, inputs)
    compiled = torch.compile(model, backend="diagnose", options={"rewrite": "all", "epilogue_fusion": False})
    found, graphs = new_graphs(lambda: loss_and_gradients(compiled, model, inputs))
    assert rewritten(graphs) == MODELS["gpt"][1]
    assert graphs[0].inner == "inductor"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_on_a_cpu_no_gain_is_claimed() -> None:
    model = Llama()
    compiled = torch.compile(model, backend="diagnose", options={"inner": "eager"})
    found, graphs = new_graphs(lambda: compiled(*batch()))
    assert rewritten(graphs) == []
    assert {site.left for site in graphs[0].sites} == {"no gain is known on a CPU"}
    assert found.requires_grad


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_sizes_that_change_compile_once_more_and_no_more(inner: str) -> None:
    model = Llama()
    compiled = compile_all(model, inner)

    def steps() -> None:
        for rows in (2, 3, 5, 4):
            inputs = batch(rows)
            torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)

    _, graphs = new_graphs(steps)
    assert len(graphs) == 2
    assert rewritten(graphs) == sorted(LLAMA_SITES * 2)


def test_each_part_of_a_broken_graph_is_rewritten() -> None:
    model = Llama()

    def program(tokens: Tensor, targets: Tensor) -> Tensor:
        x = model.embedding(tokens)
        x = model.blocks[0](x, model.angles.cos(), model.angles.sin())
        torch._dynamo.graph_break()
        logits = model.head(model.norm(x + x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    inputs = batch()
    found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert [sorted(site.pattern for site in each.sites) for each in graphs] == [
        ["add-rms-norm", "rotary", "swiglu"],
        ["add-rms-norm", "linear-cross-entropy"],
    ]
    torch.testing.assert_close(found, program(*inputs))


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_what_a_checkpoint_computes_again_is_rewritten_too(inner: str) -> None:
    model = Llama()

    def program(tokens: Tensor, targets: Tensor) -> Tensor:
        x = model.embedding(tokens)
        for block in model.blocks:
            x = checkpoint(block, x, model.angles.cos(), model.angles.sin(), use_reentrant=False)
        return functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), targets.flatten())

    inputs = batch()
    expected = loss_and_gradients(program, model, inputs)
    found, graphs = new_graphs(lambda: loss_and_gradients(compile_all(program, inner), model, inputs))
    assert rewritten(graphs) == ["add-rms-norm"] * 2 + ["linear-cross-entropy"] + ["rotary"] * 2 + ["swiglu"] * 2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.usefixtures("one_rank")
def test_parts_that_ddp_cuts_are_checked_when_their_values_come() -> None:
    model = Llama(classes=10_000)  # A head of more than one bucket.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1)
    inputs = batch()
    expected = loss_and_gradients(wrapped, model, inputs)
    found, graphs = new_graphs(lambda: loss_and_gradients(compile_all(wrapped, "aot_eager"), model, inputs))
    assert len(graphs) > 1
    assert rewritten(graphs) == LLAMA_SITES
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context: Callable[[], Any]) -> None:
    model = Llama()
    inputs = batch()
    with context():
        found, graphs = new_graphs(lambda: compile_all(model, "aot_eager")(*inputs))
        torch.testing.assert_close(found, model(*inputs))
    assert rewritten(graphs) == LLAMA_SITES


@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast(inside: bool) -> None:
    model = Llama()

    def within(*inputs: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(*inputs)

    inputs = batch()
    expected = loss_and_gradients(within, model, inputs)
    compiled = compile_all(within if inside else model, "aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        found, graphs = new_graphs(lambda: loss_and_gradients(compiled, model, inputs))
    assert rewritten(graphs) == LLAMA_SITES
    assert not torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


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
    monkeypatch.setattr(deciding, "_left", lambda *_: "")
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
    assert "1.20 times as long" in deciding._slower(patterns["swiglu"], times)
    assert deciding._slower(patterns["linear-cross-entropy"], times) == ""
    assert deciding._slower(patterns["linear-cross-entropy"], Times(1_000_000, 1_600_000)) != ""
    assert deciding._slower(patterns["swiglu"], Times(1_200_000, 1_000_000)) == ""


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
        patched.setattr(deciding, "visit_sites", fails)
        found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert graphs[0].note == "the graph could not be run beforehand: KeyError"
    assert [site.left for site in graphs[0].sites] == ["it could not be checked"]
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)

    torch.compiler.reset()
    monkeypatch.setattr(deciding, "sites_of", fails)
    found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert graphs[0].note == "nothing was rewritten: the graph could not be read (KeyError: 'a node')"
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)


def test_what_is_written_into_later_is_left_alone() -> None:
    """The operator keeps the sum for its backward pass."""

    def program(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
        total = x + branch
        normed = functional.rms_norm(total, (8,), weight, 1e-5)
        total.mul_(2.0)
        return normed + total

    inputs = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert rewritten(graphs) == []
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)


def test_copies_pickles_and_a_second_compilation() -> None:
    model = Llama()
    inputs = batch()
    compiled = compile_all(model)
    expected = compiled(*inputs)
    torch.testing.assert_close(copy.deepcopy(compiled)(*inputs), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(*inputs), expected)
    model.compile(backend="diagnose", options={"inner": "eager", "rewrite": "all"})
    torch.testing.assert_close(model(*inputs), expected)


def test_only_some_patterns() -> None:
    options: dict[str, Any] = {"inner": "eager", "rewrite": ["rotary", "swiglu"]}
    compiled = torch.compile(Llama(), backend="diagnose", options=options)
    _, graphs = new_graphs(lambda: compiled(*batch()))
    assert rewritten(graphs) == ["rotary", "rotary", "swiglu", "swiglu"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inner": "diagnose"}, "`inner` is a backend"),
        ({"rewrite": "norms"}, "not norms"),
        ({"inner": "eager", "max_autotune": True}, "not max_autotune"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        torch.compile(Llama(), backend="diagnose", options=options)(*batch())


def test_the_report_says_what_where_and_how_much(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = torch.compile(Llama(), backend="diagnose", options={"inner": "eager", "rewrite": "all", "print": True})
    with caplog.at_level(logging.INFO, "diagnose.graph"):
        _, graphs = new_graphs(lambda: compiled(*batch()))
    text = str(graphs[0])
    assert text == caplog.messages[-1]
    assert text in capsys.readouterr().err
    assert text.splitlines()[0].endswith("(cpu, the rest by eager): 9 of 9 sites rewritten")
    (line,) = [line for line in text.splitlines() if "swiglu" in line]
    assert "test_graph_rewriter.py:" in line
    assert "in blocks.0 … blocks.1 (2 times)" in line
    assert "should save 6.0 KiB, not measured on this device" in line
    assert str(graph.report()).endswith(text)


def test_torch_finds_the_backend_where_the_package_is_installed(tmp_path: Path) -> None:
    """Nothing is imported before torch asks for the name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = tmp_path / "diagnose_train-9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: diagnose-train\nVersion: 9\n")
    points = project["entry-points"]["torch_dynamo_backends"]
    lines = [f"{name} = {target}" for name, target in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines]) + "\n")
    code = (
        "import sys, torch\n"
        "assert 'diagnose' in torch._dynamo.list_backends() and 'diagnose.graph' not in sys.modules\n"
        "found = torch.compile(lambda x: x.sin(), backend='diagnose', options={'inner': 'eager'})(torch.zeros(3))\n"
        "import diagnose.graph\n"
        "print(found.tolist(), diagnose.graph.report())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "[0.0, 0.0, 0.0] graph 1 (cpu, the rest by eager): 0 of 0 sites rewritten"


def test_it_is_light_in_a_users_process() -> None:
    heavy = ("textual", "libcst", "rich", "msgspec", "torch._inductor.compile_fx")
    code = f"import sys, torch, diagnose.graph; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=240, check=True
    )
    assert answer.stdout.strip() == "[]"
