"""What Triton compiled is launched again without asking Triton, wherever it would find the same; else it is asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.compiler import CompiledKernel

from diagnose.kernels.gpu import launch

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
    ],
    ids=["threads", "alignment", "dtype", "a tensor more", "odd", "one", "64 bits", "a constant"],
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
