"""Every operator under what programs wrap around it: torch.func, export, checkpoints, gradient scaling, DTensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 as everywhere
from kernel_checks import DEVICE, always_fused, drawn, labels
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from diagnose import kernels

__all__ = ["always_fused"]
pytestmark = pytest.mark.usefixtures("always_fused")

ROWS, WIDTH, CLASSES = 6, 8, 11


@dataclass(frozen=True)
class Case:
    """An operator as a number of tensors, its formula, and the shapes of its inputs."""

    name: str
    ours: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Fresh ones, that gradients are wanted for."""
        return [drawn(*shape, seed=place, dtype=dtype) for place, shape in enumerate(self.shapes)]


TARGET = labels(ROWS, CLASSES, seed=50, ignored=(2,))
COS, SIN = (drawn(ROWS, WIDTH, seed=seed).detach() for seed in (51, 52))


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def both(found: tuple[Tensor, Tensor]) -> Tensor:
    """Both outputs in one number, neither of which may be left out."""
    return found[0].sin().sum() + found[1].square().sum()


def rotated(q: Tensor, k: Tensor) -> Tensor:
    cos, sin = COS.to(q.dtype), SIN.to(q.dtype)
    return both((q * cos + turned(q) * sin, k * cos + turned(k) * sin))


def normed(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    summed = x + residual
    return both((F.rms_norm(summed, (WIDTH,), weight, 1e-6), summed))


def normed_by_layer(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    summed = x + residual
    return both((F.layer_norm(summed, (WIDTH,), weight, bias), summed))


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), TARGET)


FLAT, SQUARE, FOUR = (ROWS, WIDTH), (ROWS, ROWS), (2, 3, ROWS, WIDTH)

CASES = [
    Case(
        "swiglu", lambda g, u: kernels.swiglu(g, u).sin().sum(), lambda g, u: (F.silu(g) * u).sin().sum(), (FLAT,) * 2
    ),
    Case("geglu", lambda g, u: kernels.geglu(g, u).sin().sum(), lambda g, u: (F.gelu(g) * u).sin().sum(), (FLAT,) * 2),
    Case("add_rms_norm", lambda *given: both(kernels.add_rms_norm(*given)), normed, (FLAT, FLAT, (WIDTH,))),
    Case(
        "add_layer_norm",
        lambda *given: both(kernels.add_layer_norm(*given)),
        normed_by_layer,
        (FLAT, FLAT, (WIDTH,), (WIDTH,)),
    ),
    Case(
        "cross_entropy",
        lambda x: kernels.cross_entropy(x, TARGET),
        lambda x: F.cross_entropy(x, TARGET),
        ((ROWS, CLASSES),),
    ),
    Case(
        "linear_cross_entropy", lambda h, w: kernels.linear_cross_entropy(h, w, TARGET), head, (FLAT, (CLASSES, WIDTH))
    ),
    Case(
        "linear_cross_entropy recomputing",
        lambda h, w: kernels.linear_cross_entropy(h, w, TARGET, recompute=True),
        head,
        (FLAT, (CLASSES, WIDTH)),
    ),
    Case(
        "rotary",
        lambda q, k: both(kernels.rotary(q, k, COS.to(q.dtype), SIN.to(q.dtype))),
        rotated,
        (FOUR, (2, 1, ROWS, WIDTH)),
    ),
    Case(
        "softmax",
        lambda x, mask: kernels.softmax(x, mask, scale=0.5, causal=True).sin().sum(),
        lambda x, mask: (
            F.softmax((x * 0.5 + mask).masked_fill(torch.ones_like(mask).triu(1).bool(), float("-inf")), -1).sin().sum()
        ),
        ((2, 3, *SQUARE), SQUARE),
    ),
]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))


@EACH
def test_gradients_by_torch_func(case: Case) -> None:
    inputs = [one.detach() for one in case.inputs()]
    every = tuple(range(len(inputs)))
    torch.testing.assert_close(
        torch.func.grad_and_value(case.ours, every)(*inputs), torch.func.grad_and_value(case.formula, every)(*inputs)
    )


@EACH
def test_gradients_of_each_sample(case: Case) -> None:
    """Of some inputs for each sample, of the last for all of them: one that has parameters shares these."""
    inputs = [one.detach() for one in case.inputs()]
    every, axes = tuple(range(len(inputs))), (0,) * (len(inputs) - 1) + (0 if len(inputs) == 1 else None,)
    given = [torch.stack((one, one.sin())) if axis == 0 else one for one, axis in zip(inputs, axes, strict=True)]
    found, expected = (
        torch.func.vmap(torch.func.grad(call, every), axes)(*given) for call in (case.ours, case.formula)
    )
    torch.testing.assert_close(found, expected)


@EACH
def test_derivatives_along_a_direction(case: Case) -> None:
    inputs = tuple(one.detach() for one in case.inputs())
    along = tuple(one.cos() for one in inputs)
    expected = torch.func.jvp(case.formula, inputs, along)
    torch.testing.assert_close(torch.func.jvp(case.ours, inputs, along), expected)
    with forward_ad.dual_level():
        made = [forward_ad.make_dual(*pair) for pair in zip(inputs, along, strict=True)]  # type: ignore[no-untyped-call]
        found = forward_ad.unpack_dual(case.ours(*made))  # type: ignore[no-untyped-call]
    torch.testing.assert_close((found.primal, found.tangent), expected)


@EACH
def test_second_derivatives_by_torch_func(case: Case) -> None:
    inputs = [one.detach() for one in case.inputs()]
    torch.testing.assert_close(torch.func.hessian(case.ours)(*inputs), torch.func.hessian(case.formula)(*inputs))


@EACH
def test_gradients_by_torch_func_in_compiled_code(case: Case) -> None:
    inputs = [one.detach() for one in case.inputs()]
    torch.compiler.reset()
    compiled = torch.compile(torch.func.grad(case.ours), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), torch.func.grad(case.formula)(*inputs))


@EACH
def test_second_derivatives_of_a_graph_are_refused_with_a_way_out(case: Case) -> None:
    if case.name == "rotary":
        pytest.skip("a rotation is linear: its gradient is a rotation, which has one too")
    inputs = case.inputs()
    with pytest.raises(RuntimeError, match=r"no second derivatives: write `.*` there, or take them by torch\.func"):
        first = torch.autograd.grad(case.ours(*inputs), inputs, create_graph=True)
        torch.autograd.grad([one.sum() for one in first], inputs)


@EACH
@pytest.mark.parametrize("reentrant", [False, True])
def test_in_what_checkpoints_compute_again(case: Case, reentrant: bool) -> None:
    inputs = case.inputs()
    expected = torch.autograd.grad(case.ours(*inputs), inputs)
    loss = checkpoint(case.ours, *inputs, use_reentrant=reentrant)
    assert isinstance(loss, Tensor)
    torch.autograd.backward(loss)
    assert all(
        one.grad is not None and torch.equal(one.grad, other) for one, other in zip(inputs, expected, strict=True)
    )


@EACH
def test_exported_programs_have_the_operator_and_its_value(case: Case) -> None:
    class Net(torch.nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return case.ours(*given)

    inputs = tuple(one.detach() for one in case.inputs())
    program = torch.export.export(Net(), inputs)
    names = {str(node.target) for node in program.graph.nodes}
    assert any(name.startswith("diagnose.") for name in names)
    torch.testing.assert_close(program.module()(*inputs), case.formula(*inputs))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's arithmetic says where it is nan
@EACH
def test_a_gradient_scaler_sees_what_overflows_and_undoes_its_scale(case: Case) -> None:
    inputs = case.inputs(torch.float32)
    expected = torch.autograd.grad(case.formula(*inputs), inputs)
    optimizer = torch.optim.SGD(inputs, lr=1.0)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    torch.autograd.backward(scaler.scale(case.ours(*inputs)))
    scaler.unscale_(optimizer)
    for one, other in zip(inputs, expected, strict=True):
        torch.testing.assert_close(one.grad, other, atol=2e-5, rtol=2e-4)
    before = [one.detach().clone() for one in inputs]
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    torch.autograd.backward(scaler.scale(case.ours(*inputs) * float("inf")))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(map(torch.equal, before, inputs)), "a step with infinite gradients is left out"


@pytest.mark.parametrize("norm", [kernels.add_rms_norm, kernels.add_layer_norm])
def test_gradients_of_what_is_added_have_memory_of_their_own(norm: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """They are equal: what clips or unscales the one in place would do it to the other too."""
    x, residual = drawn(2, 3, 8, seed=0), drawn(2, 3, 8, seed=1)
    torch.autograd.backward(both(norm(x, residual)))
    assert x.grad is not None and residual.grad is not None
    assert torch.equal(x.grad, residual.grad) and x.grad.data_ptr() != residual.grad.data_ptr()


@pytest.fixture
def mesh() -> Iterator[Any]:
    """One rank, on the CPU."""
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(DEVICE != "cpu", reason="one rank on the CPU")
@EACH
def test_distributed_tensors(case: Case, mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two inputs lie in parts on the ranks, whatever else there is on each of them whole."""
    inputs = case.inputs()
    expected = torch.autograd.grad(case.formula(*inputs), inputs)
    whole = [Replicate()]
    given = [
        distribute_tensor(
            one.detach(), mesh, [Shard(0)] if place < 2 and case.name != "softmax" else whole
        ).requires_grad_()
        for place, one in enumerate(inputs)
    ]
    for name in ("TARGET", "COS", "SIN"):
        monkeypatch.setitem(globals(), name, distribute_tensor(globals()[name], mesh, whole))
    found = torch.autograd.grad(case.ours(*given), given)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, DTensor)
        torch.testing.assert_close(one.full_tensor(), other)


@pytest.mark.skipif(DEVICE != "cpu", reason="one rank on the CPU")
def test_a_head_that_is_sharded_by_itself_says_what_to_do(mesh: Any) -> None:
    hidden, weight = drawn(ROWS, WIDTH, seed=0), drawn(CLASSES, WIDTH, seed=1)
    sharded = distribute_tensor(weight.detach(), mesh, [Shard(0)])
    with pytest.raises(TypeError, match="leave it to the `fully_shard` of the module around it"):
        kernels.linear_cross_entropy(hidden, sharded, TARGET)
