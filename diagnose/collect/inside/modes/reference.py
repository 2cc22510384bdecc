"""Runs the program in float64: what the numbers of a step would be with next to no rounding.

Parameters and buffers become float64 when their module is first called (their initial values are drawn as the program
draws them). From then on a dispatch mode keeps everything that meets a float64 tensor in float64: other floating
inputs are promoted, casts to narrower formats are ignored, autocast does nothing. Random operators draw in the format
in which the program would have drawn, or the same seed would give other numbers.

A program that multiplies in a narrower format than float32 may be run in float32 instead, by the same rules and without
TF32: that rounds thousands of times as finely as the program does, in half the memory.

A program may restrict attention to kernels that know narrow formats only; the one that is made of plain operators stays
allowed.

With a number format named, the operands of matrix products and convolutions are first rounded to it, and nothing
else: this is what that format's rounding costs by itself, on any machine.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..transparency import unseen
from . import saved_on_host

MANTISSA_BITS = {"tf32": 10, "fp16": 10, "bf16": 7, "fp8": 2}
"""Explicit bits of the formats that a fix may round operands to; of fp8's two, those of e5m2, which gradients take."""

_OPERANDS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::convolution": (0, 1),
    "aten::convolution_backward": (0, 1, 2),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "aten::_scaled_dot_product_efficient_attention": (0, 1, 2),
}
_PART = 1 << 24
"""Elements of an operand that are rounded at a time."""
# These take tensors of mixed formats on purpose (step counters) and compute in the format of what they update, which is
# float64 already.
_MIXED = "aten::_fused_"
# These take gradients of any format beside scales in float32, which `GradScaler` makes by way of float64.
_OF_SCALERS = "aten::_amp_"


def install(torch_module: ModuleType, precision: str, rounds_to: str | None, host_bytes: int = 0) -> None:
    """Make the program that has just imported torch its own reference in `precision`, "float64" or "float32".

    With `host_bytes`, so much of what a device has no room for between forward and backward may lie on the host.
    """
    torch: Any = torch_module
    arithmetic = Arithmetic(torch, precision, None if rounds_to is None else MANTISSA_BITS[rounds_to])
    mode = _mode(torch, arithmetic)
    seen: set[int] = set()
    entered: list[Any] = []

    def widen(module: Any) -> None:
        if id(module) in seen:
            return
        seen.update(id(part) for part in module.modules())
        for parameter in module.parameters():
            parameter.data = arithmetic.widened(parameter.data)
            if parameter.grad is not None:
                parameter.grad = arithmetic.widened(parameter.grad)
        for part in module.modules():
            for name, buffer in part._buffers.items():
                part._buffers[name] = arithmetic.widened(buffer)

    if host_bytes:
        saved_on_host.install(torch, host_bytes)
    strict = (torch.nn.modules.conv._ConvNd, torch.nn.RNNBase)

    def before_forward(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        widen(module)
        if not entered:
            _without_tf32(torch)  # which the program has allowed by now, if it does
            entered.append(mode.__enter__())
        # These hold the format of their input against that of their weights before any mode is asked.
        return tuple(arithmetic.widened(value) for value in arguments) if isinstance(module, strict) else None

    torch.nn.modules.module.register_module_forward_pre_hook(before_forward)
    _without_autocast(torch)
    _with_plain_attention(torch)
    _widen_before_wrapping(torch, widen)


def _without_tf32(torch: Any) -> None:
    if getattr(torch.backends, "fp32_precision", "none") != "none":  # a newer way to allow it, which torch asks first
        torch.backends.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def _without_autocast(torch: Any) -> None:
    autocast = torch.amp.autocast_mode.autocast
    enter = autocast.__enter__

    @unseen
    def entered_disabled(self: Any) -> Any:
        self._enabled = False
        return enter(self)

    autocast.__enter__ = entered_disabled


def _with_plain_attention(torch: Any) -> None:
    torch._C._set_sdp_use_math(True)
    torch._C._set_sdp_use_math = lambda _enabled: None


def _widen_before_wrapping(torch: Any, widen: Any) -> None:
    # The buckets of DistributedDataParallel take the parameters' format when it wraps them.
    wrapper = torch.nn.parallel.DistributedDataParallel
    build = wrapper.__init__

    @unseen
    def build_wide(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        widen(module)
        build(self, module, *args, **kwargs)

    wrapper.__init__ = build_wide


def _mode(torch: Any, arithmetic: Arithmetic) -> Any:
    mode: Any = torch.utils._python_dispatch.TorchDispatchMode

    class InReference(mode):  # type: ignore[misc]  # a class of a module that is typed Any
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            return arithmetic.run(func, args, kwargs or {})

    made: Any = InReference
    return made()


class Arithmetic:
    """Carries out operators in one wide format, on matrix operands that are rounded to so many bits of mantissa."""

    def __init__(self, torch: Any, precision: str, bits: int | None) -> None:
        """`precision` is "float64" or "float32"; without `bits`, operands are left as they are."""
        self._torch, self._wide, self._bits = torch, getattr(torch, precision), bits
        self._kinds: dict[Any, tuple[str, bool]] = {}
        """By operator: its name, and whether it draws numbers. To ask a schema takes longer than most operators do."""

    def run(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return what an operator gives; one that has nothing wide among its inputs, or mixes formats, is left as it
        is."""
        name, draws = self._kinds.get(func) or self._kind(func)
        if name.startswith(_OF_SCALERS):
            scales = [self._cast(value, self._torch.float32) if self._is_float(value) else value for value in args]
            return func(*scales, **named)
        formats = self._formats(args, named)
        if name.startswith(_MIXED) or self._wide not in formats:
            return func(*args, **named)
        if draws:
            return self._draw_wide(func, args, named)
        if len(formats) > 1 or named.get("dtype") is not None:
            args, named = self._converted(func, args, named)
        if self._bits is not None and name in _OPERANDS:
            operands = _OPERANDS[name]
            args = tuple(self._rounded(one, self._bits) if at in operands else one for at, one in enumerate(args))
        return func(*args, **named)

    def _kind(self, func: Any) -> tuple[str, bool]:
        name = func._schema.name
        seeded = self._torch.Tag.nondeterministic_seeded in func.tags and "scaled_dot_product" not in name
        return self._kinds.setdefault(func, (name, seeded))

    def widened(self, value: Any) -> Any:
        """A tensor, or the tensors of a state, in the wide format; whatever is no narrower stays as it is."""
        if isinstance(value, tuple):
            return tuple(self.widened(item) for item in value)
        narrow = self._is_float(value) and value.dtype.itemsize < self._wide.itemsize
        return value.to(self._wide) if narrow else value

    def _is_float(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor) and value.is_floating_point()

    def _formats(self, args: tuple[Any, ...], named: dict[str, Any]) -> set[Any]:
        """Return the formats of all floating inputs."""
        found, tensor = set(), self._torch.Tensor
        for value in (*args, *named.values()) if named else args:
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, tensor) and one.is_floating_point():
                    found.add(one.dtype)
        return found

    def _floats(self, value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            return [item for item in value if self._is_float(item)]
        return [value] if self._is_float(value) else []

    def _cast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(item, dtype) for item in value)
        return value.to(dtype) if self._is_float(value) and value.dtype != dtype else value

    def _converted(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All floating inputs in one format: that of what is written, else the widest of theirs and the reference's."""
        given = _arguments(func, args, named)
        written = [tensor.dtype for _, value, changed in given if changed for tensor in self._floats(value)]
        target = self._wide if not written or self._wide in written else written[0]
        wider = (tensor.dtype for _, value, _ in given for tensor in self._floats(value))
        if target == self._wide and any(dtype.itemsize > target.itemsize for dtype in wider):
            target = self._torch.float64
        new_args, new_kwargs = list(args), dict(named)
        for key, value, changed in given:
            if not changed:
                holder: Any = new_args if isinstance(key, int) else new_kwargs
                holder[key] = self._cast(value, target)
        dtype = new_kwargs.get("dtype")
        if dtype is not None and dtype.is_floating_point and dtype.itemsize < self._wide.itemsize:
            new_kwargs["dtype"] = self._wide
        return tuple(new_args), new_kwargs

    def _draw_wide(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A random operator on wide input, drawing as it would have drawn for float32."""
        narrow = self._torch.float32
        if func._schema.name == "aten::native_dropout":
            source, share, train = args
            if not train:
                return func(*args, **named)
            _, mask = func(self._torch.ones_like(source, dtype=narrow), share, train)
            return source * mask / (1 - share) if share < 1 else source * 0, mask
        given = _arguments(func, args, named)
        changed = [value for _, value, written in given if written and self._is_float(value)]
        drawn = func(
            *self._cast(tuple(args), narrow), **{name: self._cast(value, narrow) for name, value in named.items()}
        )
        if changed:
            changed[0].copy_(drawn)
            return changed[0]
        return self._cast(drawn, self._wide)

    def _rounded(self, tensor: Any, bits: int) -> Any:
        """Nearest, ties to even, by Veltkamp's splitting: of a product with 2^k + 1, less what it exceeds the operand
        by, the upper bits are left. Part by part beside the one copy, as logits fill much of a device.

        What is not finite stays as it is, and so does what the product is not finite of.
        """
        torch = self._torch
        factor = 2.0 ** ((52 if tensor.dtype == torch.float64 else 23) - bits) + 1
        whole = tensor.contiguous()
        near = torch.empty_like(whole)
        for given, upper in zip(whole.view(-1).split(_PART), near.view(-1).split(_PART), strict=True):
            product = given * factor
            torch.sub(product, product - given, out=upper)
            torch.where(upper == upper, upper, given, out=upper)
        return near


def _arguments(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[Any, Any, bool]]:
    """Key (position or name) and value of each argument, and whether the operator changes it in place."""
    found: list[tuple[Any, Any, bool]] = []
    for position, spec in enumerate(func._schema.arguments):
        written = spec.alias_info is not None and spec.alias_info.is_write
        if position < len(args):
            found.append((position, args[position], written))
        elif spec.name in named:
            found.append((spec.name, named[spec.name], written))
    return found
