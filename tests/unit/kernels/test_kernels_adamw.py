"""AdamW with wide moments: the numbers of `torch.optim.AdamW` in float64, and its state dicts."""

from __future__ import annotations

import copy
import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_checks import DEVICE, drawn, implementation, poisoned

from diagnose.kernels import AdamW

__all__ = ["implementation", "poisoned"]
# Poisoned memory comes with deterministic algorithms, and devices do not have all of them.
pytestmark = [
    pytest.mark.usefixtures("implementation"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]

OPERATORS = torch.ops.diagnose
SHAPES = [(5, 33), (), (2049,), (0, 4), (3, 2, 2, 2)]
OPTIONS: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def parameters(dtype: torch.dtype, seed: int = 1) -> list[torch.Tensor]:
    """Parameters of several shapes, none of them a view of another."""
    return [drawn(*shape, seed=seed + place, dtype=dtype) for place, shape in enumerate(SHAPES)]


def steps(
    params: list[torch.Tensor], optimizer: torch.optim.Optimizer, count: int = 4, seed: int = 50, scale: float = 1.0
) -> None:
    """Some steps with gradients that depend on nothing but the seed, rounded to bfloat16."""
    for turn in range(count):
        for place, param in enumerate(params):
            grad = drawn(*param.shape, seed=seed + 10 * turn + place, scale=scale).detach()
            param.grad = grad.bfloat16().to(param.dtype)
        optimizer.step()


def exact(params: list[torch.Tensor], **options: Any) -> tuple[list[torch.Tensor], torch.optim.AdamW]:
    """The same parameters in float64, and torch's optimizer for them, which updates them one by one."""
    wide = [param.detach().double().requires_grad_() for param in params]
    return wide, torch.optim.AdamW(wide, **{**OPTIONS, **options}, foreach=False)


def alike(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    """The same numbers but for the tolerance, absolute and relative."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach().double(), other.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"maximize": True}, {"weight_decay": 0.0}, {"betas": (0.9, 0.9999)}]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_masters_follow_torch_in_float64(dtype: torch.dtype, options: dict[str, Any]) -> None:
    params = parameters(dtype)
    wide, reference = exact(params, **options)
    ours = AdamW(params, **{**OPTIONS, **options}, master_weights=True)
    steps(params, ours)
    steps(wide, reference)
    masters = [ours.state[param].get("master", param) for param in params]
    alike(masters, wide, 1e-12 if dtype == torch.float64 else 1e-5)
    if os.environ.get("TRITON_INTERPRET") != "1":  # The interpreter cuts bfloat16 off where devices round it.
        assert all(torch.equal(param, master.to(dtype)) for param, master in zip(params, masters, strict=True))
    for name in ("exp_avg", "exp_avg_sq"):
        moments = [ours.state[param][name] for param in params]
        assert all(moment.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) for moment in moments)
        alike(moments, [reference.state[param][name] for param in wide], 1e-5)
    assert all(float(ours.state[param]["step"]) == 4.0 for param in params)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_masters_a_step_rounds_once(dtype: torch.dtype) -> None:
    params = parameters(dtype)
    wide, reference = exact(params)
    ours = AdamW(params, **OPTIONS)
    steps(params, ours, count=1)
    steps(wide, reference, count=1)
    assert "master" not in ours.state[params[0]]
    alike(params, wide, 5e-3 if dtype == torch.bfloat16 else 6e-4)


def test_the_second_moment_goes_on_moving_where_bfloat16_would_not() -> None:
    """What it is for: with beta 0.999, a moment of bfloat16 is stuck far from the square of a steady gradient."""
    params = [torch.ones(8, dtype=torch.bfloat16, device=DEVICE, requires_grad=True) for _ in range(2)]
    ours, native = AdamW(params[:1], betas=(0.9, 0.999)), torch.optim.AdamW(params[1:], betas=(0.9, 0.999))
    for _ in range(300):
        for param, optimizer in zip(params, (ours, native), strict=True):
            param.grad = torch.ones_like(param)
            optimizer.step()
    wanted = 1.0 - 0.999**300
    assert float(ours.state[params[0]]["exp_avg_sq"][0]) == pytest.approx(wanted, rel=1e-4)
    assert abs(float(native.state[params[1]]["exp_avg_sq"][0]) - wanted) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_layout(dtype: torch.dtype) -> None:
    """A transposed parameter, one in channels-last, a part of a larger tensor, gradients that lie otherwise."""
    base = drawn(6, 10, seed=1, dtype=dtype).detach()
    part = base[:, 2:7].requires_grad_()
    before = base.clone()
    params = [
        drawn(6, 4, seed=2, dtype=dtype).detach().t().requires_grad_(),
        drawn(2, 3, 4, 4, seed=3, dtype=dtype).detach().to(memory_format=torch.channels_last).requires_grad_(),
        part,
        drawn(9, seed=4, dtype=dtype).detach()[1:].requires_grad_(),
    ]
    layouts = [param.stride() for param in params]
    wide, reference = exact(params)
    ours = AdamW(params, **OPTIONS)
    for turn in range(2):
        for place, (param, other) in enumerate(zip(params, wide, strict=True)):
            grad = drawn(*param.shape[::-1], seed=20 * turn + place).detach().permute(*range(param.dim())[::-1])
            param.grad, other.grad = grad.bfloat16().to(dtype), grad.bfloat16().double()
        ours.step()
        reference.step()
    alike(params, wide, 1e-5 if dtype == torch.float32 else 2e-2)
    assert [param.stride() for param in params] == layouts
    assert torch.equal(base[:, :2], before[:, :2]) and torch.equal(base[:, 7:], before[:, 7:]), "the rest is left alone"


def test_gradients_wider_than_their_parameters() -> None:
    """As some programs accumulate them."""
    params = parameters(torch.bfloat16)
    wide, reference = exact(params)
    ours = AdamW(params, **OPTIONS, master_weights=True)
    for place, (param, other) in enumerate(zip(params, wide, strict=True)):
        param.grad_dtype = torch.float32
        param.grad = drawn(*param.shape, seed=70 + place, dtype=torch.float32).detach()
        other.grad = param.grad.double()
    ours.step()
    reference.step()
    alike([ours.state[param]["master"] for param in params], wide, 1e-5)


def test_each_rank_updates_its_part_of_distributed_parameters() -> None:
    """Here of one rank, so that the parts are the whole."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # torch does not say that it exports it
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh(DEVICE, (1,))
        whole = [param for param in parameters(torch.bfloat16) if param.dim()]
        parts = [
            distributed.distribute_tensor(param.detach(), mesh, [distributed.Shard(0)]).requires_grad_()
            for param in whole
        ]
        for params in (whole, parts):
            optimizer = AdamW(params, **OPTIONS, master_weights=True)
            for place, (param, like) in enumerate(zip(params, whole, strict=True)):
                grad = drawn(*like.shape, seed=place, dtype=torch.bfloat16).detach()
                param.grad = (
                    grad if param is like else distributed.distribute_tensor(grad, mesh, [distributed.Shard(0)])
                )
            optimizer.step()
            AdamW(params).load_state_dict(optimizer.state_dict())
        assert all(torch.equal(one, part.to_local()) for one, part in zip(whole, parts, strict=True))
        assert isinstance(optimizer.state[parts[0]]["master"], distributed.DTensor)
    finally:
        torch.distributed.destroy_process_group()


def test_groups_have_options_of_their_own() -> None:
    params = parameters(torch.bfloat16)
    wide, reference = exact(params)
    groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "weight_decay": 0.0, "betas": (0.5, 0.5)}]
    ours = AdamW(groups, **OPTIONS, master_weights=True)
    reference = torch.optim.AdamW(
        [{**groups[0], "params": wide[:2]}, {**groups[1], "params": wide[2:]}], **OPTIONS, foreach=False
    )
    steps(params, ours)
    steps(wide, reference)
    alike([ours.state[param]["master"] for param in params], wide, 1e-5)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    params = parameters(torch.bfloat16)
    frozen = drawn(4, seed=90, dtype=torch.bfloat16)
    before = frozen.detach().clone()
    ours = AdamW([*params, frozen], **OPTIONS)
    steps(params, ours)
    assert torch.equal(frozen, before) and frozen not in ours.state


def test_beta_zero_forgets_at_once() -> None:
    params = parameters(torch.bfloat16)
    wide, reference = exact(params, betas=(0.0, 0.0))
    ours = AdamW(params, **{**OPTIONS, "betas": (0.0, 0.0)}, master_weights=True)
    steps(params, ours)
    steps(wide, reference)
    alike([ours.state[param]["master"] for param in params], wide, 1e-5)


def test_a_learning_rate_in_a_tensor() -> None:
    params = parameters(torch.bfloat16)
    wide, reference = exact(params)
    ours = AdamW(params, **{**OPTIONS, "lr": torch.tensor(0.5, device=DEVICE)}, master_weights=True)
    ours.param_groups[0]["lr"].fill_(0.01)
    steps(params, ours)
    steps(wide, reference)
    alike([ours.state[param]["master"] for param in params], wide, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_gradients_and_steps_that_overflow(dtype: torch.dtype) -> None:
    """As `GradScaler` leaves them: the scale divides gradients; where one was infinite, nothing happens."""
    params = parameters(dtype)
    wide, reference = exact(params)
    ours = AdamW(params, **OPTIONS, master_weights=True)
    ours.grad_scale = torch.tensor(8.0, device=DEVICE)  # type: ignore[attr-defined]
    ours.found_inf = torch.tensor([0.0], device=DEVICE)  # type: ignore[attr-defined]
    steps(params, ours, scale=8.0)
    steps(wide, reference)
    masters = [ours.state[param].get("master", param) for param in params]
    alike(masters, wide, 1e-5)
    before = copy.deepcopy(ours.state_dict()["state"])
    ours.found_inf.fill_(1.0)  # type: ignore[attr-defined]
    steps(params, ours, count=1, scale=float("inf"))
    for number, state in ours.state_dict()["state"].items():
        assert all(torch.equal(value, before[number][name]) for name, value in state.items())
    assert not any(param.isnan().any() for param in params)


def test_the_scaler_leaves_unscaling_to_it() -> None:
    """In float16: on a device, no scaler takes gradients in bfloat16, which need none."""
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
    params = parameters(torch.float16)
    wide, reference = exact(params)
    ours = AdamW(params, **OPTIONS, master_weights=True)
    assert scaler.scale(torch.ones((), device=DEVICE)) == 4.0
    for place, (param, other) in enumerate(zip(params, wide, strict=True)):
        grad = drawn(*param.shape, seed=place).detach().half()
        param.grad, other.grad = grad * 4.0, grad.double()
    scaler.step(ours)
    scaler.update()
    reference.step()
    alike([ours.state[param]["master"] for param in params], wide, 1e-5)


@pytest.mark.parametrize("through", ["memory", "file"])
def test_a_run_goes_on_from_its_state_dict(through: str) -> None:
    """Moments and masters keep all their digits: the numbers are those of a run that was never stopped."""
    params = parameters(torch.bfloat16)
    ours = AdamW(params, **OPTIONS, master_weights=True)
    steps(params, ours)
    saved: dict[str, Any] = {"optimizer": ours.state_dict(), "params": [param.detach() for param in params]}
    if through == "file":
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    again = [param.clone().requires_grad_() for param in saved["params"]]
    loaded = AdamW(again, master_weights=True)
    loaded.load_state_dict(saved["optimizer"])
    steps(params, ours, seed=500)
    steps(again, loaded, seed=500)
    assert all(torch.equal(one, other) for one, other in zip(params, again, strict=True))
    for one, other in zip(params, again, strict=True):
        assert all(torch.equal(value, loaded.state[other][name]) for name, value in ours.state[one].items())


@pytest.mark.parametrize("kind", [{"foreach": False}, {"fused": True}, {"amsgrad": True}])
def test_it_takes_over_from_torch(kind: dict[str, Any]) -> None:
    params = parameters(torch.float32)
    theirs = torch.optim.AdamW(params, **OPTIONS, **kind)
    steps(params, theirs)
    taken = [param.detach().clone().requires_grad_() for param in params]
    ours = AdamW(taken)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    steps(params, theirs, seed=500)
    steps(taken, ours, seed=500)
    alike(taken, [param.double() for param in params], 1e-6)
    assert ours.param_groups[0]["lr"] == OPTIONS["lr"]


def test_torch_takes_over_from_it() -> None:
    params = parameters(torch.float32)
    ours = AdamW(params, **OPTIONS)
    steps(params, ours)
    taken = [param.detach().clone().requires_grad_() for param in params]
    theirs = torch.optim.AdamW(taken)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    steps(params, ours, seed=500)
    steps(taken, theirs, seed=500)
    alike(taken, [param.double() for param in params], 1e-6)


def test_a_state_dict_without_masters_makes_them_from_the_parameters() -> None:
    params = parameters(torch.bfloat16)
    ours = AdamW(params, **OPTIONS)
    steps(params, ours)
    loaded = AdamW(params, master_weights=True)
    loaded.load_state_dict(copy.deepcopy(ours.state_dict()))
    before = [param.detach().clone() for param in params]
    for param in params:
        param.grad = torch.zeros_like(param)
    loaded.param_groups[0]["lr"] = 0.0
    loaded.step()
    masters = [loaded.state[param]["master"] for param in params]
    alike(masters, [param.double() for param in before], 0.0)


def test_schedulers_closures_and_copies() -> None:
    params = parameters(torch.bfloat16)
    ours = AdamW(params, **OPTIONS, master_weights=True)
    schedule = torch.optim.lr_scheduler.StepLR(ours, step_size=1, gamma=0.5)

    def closure() -> torch.Tensor:
        ours.zero_grad()
        loss = sum((param.float().square().sum() for param in params), start=torch.zeros((), device=DEVICE))
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        return loss

    first = float(ours.step(closure).detach())
    schedule.step()
    assert ours.param_groups[0]["lr"] == pytest.approx(0.005)
    assert float(ours.step(closure).detach()) < first
    copied = copy.deepcopy(ours)
    assert isinstance(copied, AdamW) and copied.master_weights
    assert all("master" in state for state in copied.state.values())


def test_torchs_kernel_runs_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is for what torch refuses, and no faster where it does not."""
    called: list[str] = []
    native: Callable[..., Any] = torch._fused_adamw_

    def watched(*given: Any, **options: Any) -> None:
        called.append("torch")
        native(*given, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", watched)
    params = parameters(torch.float32)
    steps(params, AdamW(params, **OPTIONS), count=1)
    assert called == ["torch"]
    params = parameters(torch.bfloat16)
    steps(params, AdamW(params, **OPTIONS), count=1)
    assert called == ["torch"]


def test_gradients_it_cannot_take_are_refused() -> None:
    param = drawn(4, 4, seed=1)
    param.grad = torch.eye(4, dtype=param.dtype, device=DEVICE).to_sparse()
    with pytest.raises(RuntimeError, match="dense, real"):
        AdamW([param]).step()


@pytest.mark.parametrize("masters", [False, True])
def test_the_operator_keeps_its_promises(masters: bool) -> None:
    """opcheck: what it writes is what its schema says; it has no gradient."""
    params = [param.detach() for param in parameters(torch.bfloat16)]
    grads = [torch.ones_like(param) for param in params]
    mean, square, master = ([torch.rand_like(param, dtype=torch.float32) for param in params] for _ in range(3))
    counts = [torch.ones((), device=DEVICE) for _ in params]
    given: tuple[list[torch.Tensor], ...] = (params, grads, mean, square, [], master if masters else [], counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(
            OPERATORS.adamw, (*given, 0.1, None, 0.9, 0.99, 0.1, 1e-8, False, None, None),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )  # fmt: skip
