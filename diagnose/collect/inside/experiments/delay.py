"""A delay of a known length on the host or on the device: how much of it the step shows.

What it takes away
    Nothing. Once a step, before the optimizer, the training thread computes for a tenth of a step (`host`), or the
    device does (`device`). Where the step becomes as much longer, whatever is made faster there makes the step shorter
    by as much; where it stays as it is, that side has time to spare, and nothing on it is worth making faster.

What stays as it is
    All else. The delay of the device is a kernel that counts clock cycles; how long one takes is measured first.

When it refuses
    A program in which no torch optimizer takes a step, and for `device` one that uses none.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ()
BOUNDS = ()
SETTINGS = ({"delayed": "host", "share": 0.1}, {"delayed": "device", "share": 0.1})
_TRIAL_CYCLES = 20_000_000
"""Cycles of a trial delay, some ten milliseconds: long beside a launch."""


def start(change: Change) -> None:
    """Have each optimizer class wrap a `step` that waits first."""
    change.nothing = "no torch optimizer took a step before the measured ones"
    delay_ns = round(float(change.setting["share"]) * change.step_ns)
    wait = _on_the_host(delay_ns) if change.setting["delayed"] == "host" else _OnTheDevice(change, delay_ns)

    def instead(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
        def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(step)
            def delayed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if change.steps != change.at_step:  # several optimizers take one step together
                    change.at_step = change.steps
                    change.times += 1
                    wait()
                return step(optimizer, *args, **kwargs)

            return wrap(delayed)

        return profile_hook_step

    change.replace(change.torch.optim.Optimizer, "profile_hook_step", instead)


def _on_the_host(delay_ns: int) -> Callable[[], None]:
    def wait() -> None:
        end_ns = time.perf_counter_ns() + delay_ns
        while time.perf_counter_ns() < end_ns:
            pass

    return wait


class _OnTheDevice:
    """Launches a kernel that takes as long."""

    def __init__(self, change: Change, delay_ns: int) -> None:
        self._change = change
        self._delay_ns = delay_ns
        self._cycles = 0

    def __call__(self) -> None:
        """Launch it on the current stream."""
        torch = self._change.torch
        if not torch.cuda.is_initialized():
            self._change.refuse("the program uses no device of CUDA or ROCm that could be delayed")
            return
        self._cycles = self._cycles or self._measured(torch)
        torch.cuda._sleep(self._cycles)

    def _measured(self, torch: Any) -> int:
        """The cycles of the delay, from the time that some take."""
        took_ms = 1.0
        for _ in range(2):  # the first one loads the kernel
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(_TRIAL_CYCLES)
            end.record()
            end.synchronize()
            took_ms = float(begin.elapsed_time(end))
        return max(1, round(_TRIAL_CYCLES * self._delay_ns / (took_ms * 1e6)))
