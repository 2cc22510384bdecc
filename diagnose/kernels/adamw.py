"""AdamW in one pass where torch's fused one refuses: moments wider than their parameters, masters, mixed layouts.

`torch.optim.AdamW(fused=True)` wants parameters, gradients and moments of one dtype and, on devices, of one dense
layout. So what is trained in bfloat16 has moments in bfloat16, in which a second moment with beta 0.999 stops moving.
Here moments are in float32, and so is, where asked for, a master copy of each parameter, from which the parameter is
rounded. Where everything has one dtype, torch's own fused kernel runs: it moves no byte too many.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagnose.kernels.backend import compute_dtype, runs_triton

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with moments of at least float32, whatever the dtypes and layouts of the parameters.

    `master_weights` keeps a float32 copy of each parameter of less, so that no update is too small to count. State
    dicts are those of `torch.optim.AdamW`, either way; masters are one entry more, `master`. Works with `GradScaler`,
    and with a learning rate in a tensor; nothing waits for the device.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        self.master_weights = master_weights
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, fused=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "master_weights": self.master_weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # GradScaler leaves them here for the length of a step.
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            for some in _group_members(
                [self._member(param, group) for param in group["params"] if param.grad is not None]
            ):
                some.update(group, grad_scale, found_inf)
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state like torch's optimizers do, but keep the digits of moments, which torch rounds to the dtype of
        their parameter.
        """
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [param for group in self.param_groups for param in group["params"]]
        for group in self.param_groups:
            group.update(fused=True, foreach=False, capturable=False, differentiable=False)
        for number, param in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if name == "step":
                    self.state[param][name] = _step_of(param, float(value) if not torch.is_tensor(value) else value)
                elif name in (*MOMENTS, "master"):
                    self.state[param][name] = _zeros(param).copy_(value)

    def _member(self, param: Tensor, group: dict[str, Any]) -> "_Member":
        """Return a parameter with its state; moments and step count are created where they are missing."""
        if param.grad is None or param.grad.is_sparse or param.is_complex():
            raise RuntimeError("AdamW takes dense, real gradients")
        state = self.state[param]
        if "step" not in state:
            state["step"] = _step_of(param, 0.0)
        for name in MOMENTS if group["amsgrad"] else MOMENTS[:2]:
            if name not in state:
                state[name] = _zeros(param)
        if self.master_weights and param.dtype != state["exp_avg"].dtype:
            if "master" not in state:
                state["master"] = _zeros(param).copy_(param)
        else:
            state.pop("master", None)
        names = (*(MOMENTS if group["amsgrad"] else MOMENTS[:2]), *(["master"] if "master" in state else []))
        # torch's kernel takes float64 by itself alone, and ours takes none.
        grad = param.grad.double() if param.dtype == torch.float64 else param.grad
        return _Member(_local(param), _local(grad), {name: _local(state[name]) for name in names}, state["step"])


@dataclass(frozen=True)
class _Member:
    """A parameter, or this rank's part of it, and what belongs to it."""

    param: Tensor
    grad: Tensor
    state: dict[str, Tensor]
    step: Tensor

    @property
    def kind(self) -> tuple[Any, ...]:
        """Members of one kind are updated in one go."""
        return self.param.device, self.param.dtype, self.grad.dtype, tuple(self.state)


@dataclass(frozen=True)
class _Members:
    """Members of one kind, as lists; parameters that are not dense have a dense copy among them."""

    params: list[Tensor]
    grads: list[Tensor]
    states: dict[str, list[Tensor]]
    steps: list[Tensor]
    copied: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def update(self, group: dict[str, Any], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """One step of AdamW."""
        device = self.params[0].device
        lr = group["lr"]
        if isinstance(lr, Tensor):
            lr = float(lr) if lr.device.type == "cpu" else lr.to(device, non_blocking=True)
        numbers = (*map(float, group["betas"]), group["weight_decay"], group["eps"])
        scale, skip = (
            None if value is None else value.to(device, non_blocking=True) for value in (grad_scale, found_inf)
        )
        torch._foreach_add_(self.steps, 1)
        moments = [self.states.get(name, []) for name in MOMENTS]
        if self.params[0].dtype == self.grads[0].dtype == moments[0][0].dtype:
            beta1, beta2, weight_decay, eps = numbers
            torch._fused_adamw_(  # type: ignore[call-overload]  # does not see through the star
                self.params, self.grads, *moments, self.steps, lr=lr, beta1=beta1, beta2=beta2,
                weight_decay=weight_decay, eps=eps, amsgrad=group["amsgrad"], maximize=group["maximize"],
                grad_scale=scale, found_inf=skip,
            )  # fmt: skip
        else:
            rate, rate_on_device = (0.0, lr) if isinstance(lr, Tensor) else (lr, None)
            _update(
                self.params, self.grads, *moments, self.states.get("master", []), self.steps,
                rate, rate_on_device, *numbers, group["maximize"], scale, skip,
            )  # fmt: skip
        if skip is not None:
            torch._foreach_sub_(self.steps, [skip.reshape(())] * len(self.steps))
        for param, dense in self.copied:
            param.copy_(dense)


_CHANGED = ("params", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "masters")
# Torch before 2.7 reads no `list[Tensor]` from a signature.
_SCHEMA = (
    "(Tensor(a0!)[] params, Tensor[] grads, Tensor(a2!)[] exp_avgs, Tensor(a3!)[] exp_avg_sqs, "
    "Tensor(a4!)[] max_exp_avg_sqs, Tensor(a5!)[] masters, Tensor[] steps, float lr, Tensor? lr_on_device, "
    "float beta1, float beta2, float weight_decay, float eps, bool maximize, Tensor? grad_scale, Tensor? found_inf"
    ") -> ()"
)


@torch.library.custom_op("diagnose::adamw", mutates_args=_CHANGED, schema=_SCHEMA)
def _update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    masters: list[Tensor],
    steps: list[Tensor],
    lr: float,
    lr_on_device: Tensor | None,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """Update parameters whose steps are already counted; the tensors of each are dense and lie alike."""
    if runs_triton(params[0]):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import adamw

        adamw.update(
            params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, masters, steps, lr, lr_on_device, beta1, beta2,
            weight_decay, eps, maximize, grad_scale, found_inf,
        )  # fmt: skip
        return
    kept = None if found_inf is None else found_inf.reshape(()) == 0
    rate = lr if lr_on_device is None else lr_on_device
    for place, (param, grad, step) in enumerate(zip(params, grads, steps, strict=True)):
        moments = [some[place] for some in (exp_avgs, exp_avg_sqs, max_exp_avg_sqs) if some]
        wide = grad.to(moments[0].dtype)
        wide = wide if grad_scale is None else wide / grad_scale
        wide = -wide if maximize else wide
        held = masters[place] if masters else param
        first = torch.lerp(moments[0], wide, 1 - beta1)
        second = moments[1] * beta2 + wide * wide * (1 - beta2)
        largest = torch.maximum(moments[2], second) if len(moments) == 3 else second
        updated = held.to(first.dtype) * (1 - rate * weight_decay)
        size = largest.sqrt() / (1 - beta2**step).sqrt() + eps
        updated -= rate / (1 - beta1**step) * first / size
        written = [(held, updated), *zip(moments, (first, second, largest), strict=False)]
        for target, value in [*written, (param, updated)] if masters else written:
            target.copy_(value if kept is None else torch.where(kept, value, target))


@_update.register_fake
def _(*_: Any) -> None:
    return None


def _group_members(members: list[_Member]) -> list[_Members]:
    """Group members by kind; parameters and gradients whose layout differs from their moments' are copied into that
    layout.
    """
    kinds: dict[tuple[Any, ...], list[_Member]] = {}
    for member in members:
        kinds.setdefault(member.kind, []).append(member)
    found = []
    for some in kinds.values():
        params = [_in_layout_of_moment(member.param, member.state["exp_avg"]) for member in some]
        found.append(
            _Members(
                params,
                [_in_layout_of_moment(member.grad, member.state["exp_avg"]) for member in some],
                {name: [member.state[name] for member in some] for name in some[0].state},
                [member.step for member in some],
                [
                    (member.param, dense)
                    for member, dense in zip(some, params, strict=True)
                    if dense is not member.param
                ],
            )
        )
    return found


def _in_layout_of_moment(tensor: Tensor, moment: Tensor) -> Tensor:
    """The tensor, or a copy of it in the layout of its first moment, which is dense."""
    sizes = zip(tensor.shape, tensor.stride(), moment.stride(), strict=True)
    if all(one == other for size, one, other in sizes if size != 1):
        return tensor
    return torch.empty_like(moment, dtype=tensor.dtype).copy_(tensor)


def _zeros(param: Tensor) -> Tensor:
    return torch.zeros_like(param, dtype=compute_dtype(param.dtype), memory_format=torch.preserve_format)


def _step_of(param: Tensor, count: float | Tensor) -> Tensor:
    if isinstance(count, Tensor):
        return count.detach().to(param.device, torch.float32, copy=True)
    return torch.full((), count, dtype=torch.float32, device=param.device)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor: AdamW works element by element."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
