"""Linear layers that multiply in fp8: near float64, under compilers, and in all else the layers that they were."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from diagnose.kernels import fp8_linear, multiply_in_fp8

Layers = TypeVar("Layers", bound=nn.Module)
# One operand rounds by at most 2^-4 of itself (e4m3) or 2^-3 (e5m2), and elements below the smallest normal number by
# at most that share of the tensor's largest: sums of random signs err by less than the two bounds together.
FORWARD, BACKWARD = 2**-4 + 2**-4, 2**-4 + 2**-3


@pytest.fixture(autouse=True)
def small_layers_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_linear, "has_fp8", lambda _device: True)
    monkeypatch.setattr(fp8_linear, "LEAST_WEIGHTS", 1)


def in_fp8(model: Layers) -> Layers:
    multiply_in_fp8(model)
    return model


def pair(columns: int = 64, rows: int = 128) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(columns, rows), nn.GELU(), nn.Linear(rows, columns, bias=False))


def trained(
    model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], lead: tuple[int, ...] = (4, 8)
) -> list[Any]:
    """Output and gradients of a step in autocast."""
    model.zero_grad()
    given = torch.randn(*lead, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = call(given)
    out.float().square().mean().backward()  # type: ignore[no-untyped-call]
    return [out.detach(), given.grad, *(each.grad for each in model.parameters())]


def swapped(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.detach().double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("seed", range(12))
def test_products_are_within_what_fp8_rounds_of_float64(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    batch, columns, rows = (16 * int(torch.randint(1, 9, (), generator=draw)) for _ in range(3))
    size = 10.0 ** float(torch.randint(-6, 7, (), generator=draw))
    layer = nn.Linear(columns, min(rows, 8 * columns), dtype=torch.bfloat16)
    multiply_in_fp8(layer)
    given = (size * torch.randn(batch, columns, generator=draw)).bfloat16().requires_grad_()
    along = (torch.randn(batch, layer.out_features, generator=draw) / size).bfloat16()
    out = layer(given)
    out.backward(along)
    wide, weight = given.detach().double(), layer.weight.detach().double()
    assert layer.bias is not None and layer.weight.grad is not None and given.grad is not None
    assert 0 < error(out, wide @ weight.t() + layer.bias.detach().double()) < FORWARD
    assert 0 < error(given.grad, along.double() @ weight) < BACKWARD
    assert 0 < error(layer.weight.grad, along.double().t() @ wide) < BACKWARD


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_compiled_without_a_graph_break(backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    model = in_fp8(pair())
    eager = trained(model, model)
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for found, wanted in zip(trained(model, compiled), eager, strict=True):
        assert found.dtype == wanted.dtype
        assert error(found, wanted) < FORWARD


def test_gradients_keep_the_formats_of_what_they_are_of() -> None:
    out, *gradients = trained(model := in_fp8(pair()), model)
    assert out.dtype == torch.bfloat16
    assert {each.dtype for each in gradients} == {torch.float32}
    assert in_fp8(pair().bfloat16())[0](torch.ones(16, 64).bfloat16()).dtype == torch.bfloat16


def test_the_model_is_saved_copied_and_shown_as_it_was() -> None:
    plain, model = pair(), in_fp8(pair())
    assert str(model) == str(plain)
    assert [type(each) for each in model.modules()] == [type(each) for each in plain.modules()]
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True))
    assert list(model.state_dict()) == list(plain.state_dict())
    again = copy.deepcopy(model)
    assert swapped(again) == ["0", "2"]
    with torch.no_grad():
        next(again.parameters()).zero_()
    assert torch.equal(next(model.parameters()), next(plain.parameters()))
    assert not torch.equal(trained(again, again)[0], trained(model, model)[0])


def test_a_model_that_is_pickled_whole_loads_without_this_package_as_plain_layers() -> None:
    plain, file = pair(), io.BytesIO()
    torch.save(in_fp8(pair()), file)
    assert b"diagnose" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert all(torch.equal(a, b) for a, b in zip(trained(loaded, loaded), trained(plain, plain), strict=True))


def test_what_is_not_large_plain_and_its_own_is_left_alone() -> None:
    class Own(nn.Linear):
        pass

    hooked, tied = nn.Linear(64, 64), nn.Linear(64, 64)
    hooked.register_forward_hook(lambda *_: None)
    both = nn.Linear(64, 64)
    both.weight = tied.weight
    odd, head, kept = nn.Linear(64, 24), nn.Linear(64, 1024), nn.Linear(64, 512)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    model = nn.ModuleList([Own(64, 64), hooked, tied, both, odd, head, kept, parametrized])
    assert swapped(in_fp8(model)) == ["6"]
    forward = kept.forward
    assert in_fp8(model)[6].forward is forward


def test_small_layers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with torch.device("meta"):
        gpt, llama = nn.Linear(768, 3072), nn.Linear(2048, 5632)
    assert swapped(in_fp8(nn.ModuleList([gpt, llama]))) == ["1"]


@pytest.mark.parametrize("how", ["float32", "no_grad", "odd rows", "float16", "double", "no device"])
def test_elsewhere_a_layer_computes_what_it_did(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = pair(), in_fp8(pair())
    given = torch.randn(17 if how == "odd rows" else 16, 64)
    if how == "double":
        given, plain, model = given.double(), plain.double(), model.double()
    if how == "no device":
        monkeypatch.undo()
    narrow = torch.float16 if how == "float16" else torch.bfloat16
    with torch.set_grad_enabled(how != "no_grad"), torch.autocast("cpu", narrow, enabled=how != "float32"):
        assert torch.equal(model(given), plain(given))


def test_zeros_and_what_is_no_number_stay() -> None:
    layer = in_fp8(nn.Linear(64, 64, bias=False, dtype=torch.bfloat16))
    assert not layer(torch.zeros(16, 64).bfloat16()).any()
    assert layer(torch.full((16, 64), torch.inf).bfloat16()).isnan().all()


def test_a_frozen_weight_gets_no_gradient_and_its_input_does() -> None:
    model = in_fp8(pair())
    model[2].requires_grad_(False)
    trained(model, model)
    assert model[2].weight.grad is None
    assert model[0].weight.grad is not None


def test_gradients_of_gradients_are_refused() -> None:
    layer = in_fp8(nn.Linear(64, 64, dtype=torch.bfloat16))
    given = torch.ones(16, 64).bfloat16().requires_grad_()
    (slope,) = torch.autograd.grad(layer(given).square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        slope.sum().backward()  # type: ignore[no-untyped-call]
