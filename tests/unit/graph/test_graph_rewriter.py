"""The backend `diagnose` on whole models: what it rewrites, and that numbers stay."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_models import (
    CLASSES,
    GPT,
    HEADS,
    LLAMA_SITES,
    MODELS,
    WIDTH,
    Llama,
    batch,
    compile_all,
    fresh,
    loss_and_gradients,
    new_graphs,
    one_rank,
    rewritten,
)
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

__all__ = ["fresh", "one_rank"]
# Dynamo looks at it, and hides the warning where warnings are no errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


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


@pytest.mark.slow
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


def test_a_loss_outside_of_the_region_that_its_output_layer_stands_in(capfd: pytest.CaptureFixture[str]) -> None:
    """The forward pass under autocast, the loss in float32: each node is checked as it runs."""
    model = Llama()

    def program(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.head(model.embedding(tokens))
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    inputs = batch()
    expected = loss_and_gradients(program, model, inputs)
    found, graphs = new_graphs(lambda: loss_and_gradients(compile_all(program, "aot_eager"), model, inputs))
    assert rewritten(graphs) == ["linear-cross-entropy"]
    assert not torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_loss_that_wants_no_autocast_within_a_region_of_it() -> None:
    model = Llama()

    def program(tokens: Tensor, targets: Tensor) -> Tensor:
        logits = model.head(model.embedding(tokens))
        with torch.autocast("cpu", enabled=False):
            return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def within(*inputs: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return program(*inputs)

    inputs = batch()
    expected = loss_and_gradients(within, model, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found, graphs = new_graphs(lambda: loss_and_gradients(compile_all(program, "aot_eager"), model, inputs))
    assert rewritten(graphs) == ["linear-cross-entropy"]
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
