"""What Triton compiled is launched again without asking Triton, wherever it would find the same; else it is asked."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.compiler import CompiledKernel

from diagnose.kernels.gpu import launch
from diagnose.kernels.launch.tuning import Config

COMPILED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")

KEPT = torch.zeros(64)
"""Memory whose allocation is aligned, as torch's always is."""


class Binary(CompiledKernel):  # type: ignore[misc]  # Triton has no types
    """What stands for a binary: it says how it was launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.launched.append((grid, *args))


class Kernel:
    """What stands for a kernel: it says what Triton was asked for, and hands out a binary each time."""

    def __init__(self, interpreted: bool = False) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.binaries: list[Binary] = []
        self.interpreted = interpreted
        self.pre_run_hooks: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def ask(*args: Any, num_warps: int) -> Binary | None:
            self.asked.append((grid, *args, num_warps))
            if self.interpreted:
                return None
            self.binaries.append(Binary())
            return self.binaries[-1]

        return ask


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_known", {})
    monkeypatch.setattr(launch, "REMEMBERS", True)


def test_the_second_launch_of_a_kind_does_not_ask() -> None:
    kernel, other = Kernel(), torch.zeros(64)
    launch.start(kernel, (7,), 128, (KEPT, None), 64, 0.5, True)
    launch.start(kernel, (3, 5), 128, (other, None), 64, 0.5, True)
    assert kernel.asked == [((7,), KEPT, None, 64, 0.5, True, 4)]
    grid, *given = kernel.binaries[0].launched[0]
    assert grid[:3] == (3, 5, 1) and given[0] is other, "on its own grid, with its own tensors"
    assert given[1:] == [None, 64, 0.5, True]


@pytest.mark.parametrize(
    "differing",
    [
        (256, (KEPT, None), 64, 0.5),
        (128, (KEPT[1:], None), 64, 0.5),
        (128, (KEPT.bfloat16(), None), 64, 0.5),
        (128, (KEPT, KEPT), 64, 0.5),
        (128, (KEPT, None), 63, 0.5),
        (128, (KEPT, None), 1, 0.5),
        (128, (KEPT, None), 1 << 31, 0.5),
        (128, (KEPT, None), 64, 0.25),
        (128, (KEPT, None), 64.0, 0.5),
    ],
    ids=["threads", "alignment", "dtype", "a tensor more", "odd", "one", "64 bits", "a constant", "no whole number"],
)
def test_whatever_triton_may_compile_anew_for_is_asked(differing: tuple[Any, ...]) -> None:
    kernel = Kernel()
    launch.start(kernel, (1,), 128, (KEPT, None), 64, 0.5)
    threads, *rest = differing
    launch.start(kernel, (1,), threads, *rest)
    assert len(kernel.asked) == 2 and not kernel.binaries[0].launched


def test_two_kernels_share_nothing() -> None:
    kernels = Kernel(), Kernel()
    for kernel in kernels:
        launch.start(kernel, (1,), 128, (KEPT,), 64)
    assert [len(kernel.asked) for kernel in kernels] == [1, 1]


def test_devices_of_amd_are_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles for them by the size of what a tensor lies in, too, which is nothing that a launch names."""
    monkeypatch.setattr(launch, "REMEMBERS", False)
    kernel = Kernel()
    for _ in range(2):
        launch.start(kernel, (1,), 128, (KEPT,), 64)
    assert len(kernel.asked) == 2


@pytest.mark.parametrize(
    ("version", "cuda", "remembered"),
    [
        ("3.6.0", "13.0", True),
        ("3.10.1+git4a2b", "13.0", True),
        ("3.2.0", "12.4", False),
        ("3.5.1", "12.8", False),
        ("3.6.0", None, False),
        ("unknown", "13.0", False),
    ],
)
def test_only_tritons_that_were_read_are_not_asked(version: str, cuda: str | None, remembered: bool) -> None:
    """Those before 3.3 hand a compiled kernel no constants: with them the second launch would raise."""
    assert launch.remembers(version, cuda) is remembered


@pytest.mark.parametrize(
    ("knobs", "name"), [("runtime", "debug"), ("compilation", "instrumentation_mode")], ids=["checks", "a profiler"]
)
def test_what_is_switched_on_between_two_launches_is_compiled(
    knobs: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel()
    launch.start(kernel, (1,), 128, (KEPT,), 64)
    monkeypatch.setattr(getattr(triton.knobs, knobs), name, "on")
    launch.start(kernel, (1,), 128, (KEPT,), 64)
    assert len(kernel.asked) == 2


def test_what_is_to_run_before_each_launch_does() -> None:
    kernel = Kernel()
    kernel.pre_run_hooks = [print]
    for _ in range(2):
        launch.start(kernel, (1,), 128, (KEPT,), 64)
    assert len(kernel.asked) == 2


@COMPILED
def test_what_is_launched_again_is_what_triton_would_have_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's own word: of launches of all kinds one after the other, equal numbers of other types among them."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    from diagnose.kernels.gpu.masked_softmax import backward_kernel

    backend = make_backend(GPUTarget("cuda", 90, 32))
    told = create_function_from_signature(backward_kernel.signature, backward_kernel.params, backend)
    again = []

    class Chosen(Binary):
        def __init__(self, *args: Any) -> None:
            self.by = str(told(*args)[1])

        def __getitem__(self, _: tuple[int, ...]) -> Any:
            return lambda *args: again.append((args, str(told(*args)[1]) == self.by))

    class Chooser(Kernel):
        def __getitem__(self, _: tuple[int, ...]) -> Any:
            return lambda *args, **_: Chosen(*args)

    numbers = (0, False, 0.0, 1, True, 1.0, 16, 17, -100, (1 << 31) - 1, 1 << 31, -(1 << 31))
    constants = (0, False, 0.0, 1, True, 1.0, None, tl.float32, tl.float64, "silu")
    memory = (KEPT, KEPT[1:], KEPT[4:], KEPT[:0], KEPT.bfloat16(), None)
    monkeypatch.setattr(launch, "MOST_KNOWN", 1 << 20)
    chooser = Chooser()
    for mask, scale, rows, columns, constant in itertools.product(
        memory, (1, 1.0, 0.5), (3, 3.0, 16, 1, True), numbers, constants
    ):
        for first in (KEPT, KEPT[1:]):
            launch.start(chooser, (1,), 128, (first, mask, KEPT), scale, rows, 4, columns, constant, 1, None, 2, 64)
    assert len(again) > 1000 and not [args for args, same in again if not same]


def test_every_kernel_takes_its_tensors_first_and_is_given_all_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled kernel knows no names and no defaults."""
    from diagnose.kernels.gpu import (
        gated_unit,
        masked_softmax,
        parts,
        residual_layer_norm,
        residual_norm,
        rotary,
        row_loss,
        scaling,
    )

    started: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {}

    def start(kernel: Any, grid: tuple[int, ...], _: int, tensors: tuple[Any, ...], *rest: Any) -> None:
        assert len(grid) <= 2
        started[f"{kernel.fn.__module__}.{kernel.fn.__name__}"] = kernel, tensors, rest

    modules = gated_unit, masked_softmax, parts, residual_layer_norm, residual_norm, rotary, row_loss, scaling
    for module in modules:
        monkeypatch.setattr(module, "start", start)
    wide = torch.float32
    x, row, heads = torch.zeros(4, 32), torch.zeros(4), torch.zeros(2, 3, 4, 8)
    column, labels = torch.zeros(32), torch.zeros(4, dtype=torch.int64)
    gated_unit.activate(x, x, x, wide)
    gated_unit.gradients(x, x, x, x, x, wide)
    masked_softmax.normalise(heads, None, heads, 1.0, False, wide)
    masked_softmax.gradients(heads, heads, heads, 1.0, False, wide)
    residual_layer_norm.add_and_normalise(x, x, column, column, x, x, row, row, 1e-5)
    residual_layer_norm.gradients(x, x, x, column, column, row, row, x)
    residual_norm.add_and_normalise(x, x, column, x, x, row, 1e-5, False)
    residual_norm.gradients(x, x, x, column, row, x, False)
    rotary.rotate(heads, heads, heads, heads, heads, heads, wide, 1, False, False)
    row_loss.losses_of_rows(x, labels, row, row, -100, 0.0, 0.0)
    row_loss.gradients_of_rows(x, labels, row, row, x, 0, 32, -100, 0.0, 0.0)
    scaling.scale(x, torch.ones(()), x)
    for name, (kernel, tensors, rest) in started.items():
        assert all(one is None or isinstance(one, torch.Tensor) for one in tensors), name
        assert not any(isinstance(one, torch.Tensor) for one in rest), f"{name}: it would be kept for good"
        parameters = inspect.signature(kernel.fn).parameters.values()
        assert len(parameters) == len(tensors) + len(rest), name
        assert all(one.default is one.empty for one in parameters), name
    kernels = {f"{module.__name__}.{name}" for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert started.keys() == kernels


def test_interpreted_kernels_are_asked_each_time() -> None:
    kernel = Kernel(interpreted=True)
    for _ in range(2):
        launch.start(kernel, (1,), 128, (KEPT,), 64)
    assert len(kernel.asked) == 2


def test_shapes_that_never_come_again_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST_KNOWN", 8)
    kernel = Kernel()
    for length in range(100):
        launch.start(kernel, (1,), 128, (KEPT,), length)
    assert len(launch._known) <= 8


@COMPILED
def test_lengths_that_vary_compile_few_kernels() -> None:
    """A batch is as long as its longest text: what follows from that is a multiple of 16 or not, and that is all."""
    from diagnose.kernels.gpu import (
        gated_unit,
        masked_softmax,
        parts,
        residual_layer_norm,
        residual_norm,
        rotary,
        row_loss,
    )

    followers = {
        gated_unit.forward_kernel: {"columns": 768, "blocks": 1},
        gated_unit.backward_kernel: {"columns": 768, "blocks": 1},
        residual_norm.backward_kernel: {"rows": 1},
        residual_layer_norm.backward_kernel: {"rows": 1, "parts": 1},
        masked_softmax.forward_kernel: {"rows": 12, "tokens": 1, "columns": 1},
        masked_softmax.backward_kernel: {"rows": 12, "tokens": 1, "columns": 1},
        rotary.rotary_kernel: {"tokens": 1, "q_stride_0": 768},
        row_loss.loss_kernel: {"columns": 1, "row_stride": 1},
        row_loss.gradient_kernel: {"columns": 1, "row_stride": 1, "gradient_stride": 1},
        parts.sum_kernel: {"count": 1},
    }
    for kernel, named in followers.items():
        told_apart = [one for one in kernel.params if one.name in named and not one.do_not_specialize]
        kinds = {
            tuple((number == 1, number % 16 == 0) for number in (named[one.name] * length for one in told_apart))
            for length in range(2, 49)
        }
        assert named.keys() <= {one.name for one in kernel.params}
        assert len(kinds) <= 2, kernel


@pytest.mark.parametrize("backward", [False, True])
def test_lengths_that_vary_are_tuned_once_for_each_power_of_two(
    monkeypatch: pytest.MonkeyPatch, backward: bool
) -> None:
    """Of attention that is written out, and of a loss over the tokens of a text, rows are as long as the batch."""
    from diagnose.kernels.gpu import masked_softmax, row_loss

    asked: dict[str, set[tuple[int, ...]]] = {}

    def choose(kernel: str, shape: tuple[int, ...], _: object, candidates: Sequence[Config], __: object) -> Config:
        asked.setdefault(kernel, set()).add(shape)
        return candidates[0]

    for module in (masked_softmax, row_loss):
        monkeypatch.setattr(module, "choose", choose)
        monkeypatch.setattr(module, "start", lambda *_: None)
    for length in (65, 72, 97, 113, 128):
        scores, logits = torch.randn(2, 3, length, length), torch.randn(4, length)
        labels, row = torch.zeros(4, dtype=torch.int64), torch.zeros(4)
        if backward:
            masked_softmax.gradients(scores, scores, torch.empty_like(scores), 1.0, False, torch.float32)
            given = logits, labels, row, row, torch.empty_like(logits)
            row_loss.gradients_of_rows(*given, 0, length, -100, 0.0, 0.0)
        else:
            masked_softmax.normalise(scores, None, torch.empty_like(scores), 1.0, False, torch.float32)
            row_loss.losses_of_rows(logits, labels, row, row, -100, 0.0, 0.0)
    end = " backward" if backward else ""
    assert {kernel: len(shapes) for kernel, shapes in asked.items()} == {f"softmax{end}": 2, f"cross_entropy{end}": 1}
