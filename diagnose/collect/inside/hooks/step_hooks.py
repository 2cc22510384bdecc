"""Finds the ends of training steps, counts backward passes, and times the loader, without an edit of the program.

A step ends when the optimizer has returned. Where several take turns (a GAN, an optimizer wrapped by another), the one
that was seen first last closes the cycle; a step that GradScaler skips counts too. A program without a torch optimizer
is counted by its backward passes, and one without those by its batches, but only after so many of them that no
optimizer can be expected any more. All wrapping is of torch's own functions, transparent to torch.compile.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..guard import contained, guarded
from ..transparency import unseen

BACKWARDS_WITHOUT_OPTIMIZER = 64
"""Backward passes without any optimizer after which each counts as a step (more than people accumulate)."""
BATCHES_WITHOUT_BACKWARD = 256
"""Batches without any backward pass after which each counts as a step."""
_STEPS_WITHOUT_CLOSER = 64

_clock = time.time_ns
_thread_id = threading.get_ident


class StepHooks:
    """The counting itself; `ended(restarted)` is called on the training thread at the end of each step."""

    def __init__(self, ended: Callable[[bool], None]) -> None:
        self.thread = threading.get_ident()
        """The training thread: where the first step is taken."""
        self.passive = False
        self.found_by = "none"
        """`optimizer`, `backward`, `batches`, or `none` so far."""
        self.end_ns = 0
        self.input_ns = 0
        self.step_backwards = 0
        """Backward passes of the step that ended last."""
        self.step_input_ns = 0
        """Time in the loader during the step that ended last."""
        self.forward_ns = 0
        """Sum over the steps so far: from a step's beginning to its first backward pass, less waits for the loader."""
        self.on_range: Callable[[int, int, str], None] | None = None
        """Told of each wait for the loader: kind, start, end, name."""
        self.on_optimizer: Callable[[Any], None] = lambda _optimizer: None
        """Told of each optimizer that has stepped, also of one that another calls."""
        self.loader: weakref.ref[Any] | None = None
        """The iterator of the loader that training last took a batch from."""
        self.built_by: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        """The loader that each iterator came from."""
        self.early: list[tuple[int, int]] = []
        """End and input time of backward passes that may yet turn out to be the steps."""
        self._ended = ended
        self._backwards = 0
        self._input_before = 0
        self._in_backward = False
        self._in_input = False
        self._batches = 0
        self._optimizers: set[int] = set()
        self._closer = 0
        self._others = 0
        self.optimizer_calls = 0
        self.hook_again: Callable[[], None] = lambda: None
        """Has to be called after each use of torch.compile."""

    @property
    def saw_training(self) -> bool:
        """Whether anything happened that looks like training."""
        return bool(self.early or self.optimizer_calls or self._backwards or self._batches)

    def install(self, torch: ModuleType) -> None:
        """Wrap what has to be wrapped; a part that this torch lacks is left out."""
        for hook in (hook_optimizers, hook_backward, hook_loader, hook_scaler):
            guarded(hook)(torch, self)

    def iterator_built(self, iterator: object, loader: object) -> None:
        """A loader handed out an iterator; one that is kept between epochs is handed out again."""
        self.built_by[iterator] = weakref.ref(loader)

    def training_loader(self) -> object | None:
        """The loader that training last took a batch from, where it still lives."""
        iterator = self.loader() if self.loader is not None else None
        built_by = self.built_by.get(iterator) if iterator is not None else None
        return built_by() if built_by is not None else None

    def optimizer_stepped(self, optimizer: object) -> None:
        """An outermost `step` returned, or was skipped by GradScaler."""
        if self._in_backward:
            return  # optimizers fused into the backward pass: each is a part of one step
        if self.found_by != "optimizer":
            self.thread = _thread_id()
        elif _thread_id() != self.thread:
            return
        key = id(optimizer)
        if key != self._closer:
            known = key in self._optimizers
            self._others += 1
            if known and self._others <= _STEPS_WITHOUT_CLOSER:
                return
            self._optimizers.add(key)
            self._closer = key
        self._others = 0
        self._step("optimizer")

    def backward_returned(self) -> None:
        """A backward pass is done."""
        self._backwards += 1
        if self.found_by == "optimizer" or _thread_id() != self.thread:
            return
        if self.found_by == "backward":
            self._step("backward")
            return
        self.early.append((_clock(), self.input_ns))
        if len(self.early) >= BACKWARDS_WITHOUT_OPTIMIZER:
            self.early.clear()
            self._step("backward")

    def _step(self, found_by: str) -> None:
        self.end_ns = _clock()
        restarted = self.found_by not in (found_by, "none")
        self.found_by = found_by
        self.early.clear()
        self.step_backwards, self._backwards = self._backwards, 0
        self.step_input_ns, self._input_before = self.input_ns - self._input_before, self.input_ns
        self._ended(restarted)

    def enter_input(self) -> int:
        """Begin of a wait for the loader: its time, or 0 where it does not count (nested, another thread)."""
        if self.passive or self._in_input or _thread_id() != self.thread:
            return 0
        self._in_input = True
        return _clock()

    def leave_input(self, start: int, name: str, fetched: bool) -> None:
        """End of the wait that `enter_input` began; `fetched`: with a batch."""
        self._in_input = False
        end = _clock()
        self.input_ns += end - start
        if self.on_range is not None:
            self.on_range(start, end, name)
        if fetched and self.found_by == "batches":
            self._step("batches")
        elif fetched and self.found_by == "none" and not self._backwards:
            self._batches += 1
            if self._batches >= BATCHES_WITHOUT_BACKWARD:
                self._step("batches")

    def enter_backward(self) -> bool:
        """Begin of a backward pass; False for one inside another (reentrant checkpointing)."""
        if self.passive or self._in_backward:
            return False
        self._in_backward = True
        if not self._backwards and self.end_ns:
            self.forward_ns += max(0, _clock() - self.end_ns - (self.input_ns - self._input_before))
        return True

    def leave_backward(self, done: bool) -> None:
        """End of a backward pass; `done` where it did not raise."""
        self._in_backward = False
        if done:
            self.backward_returned()


def hook_optimizers(torch: Any, steps: StepHooks) -> None:
    """Be told after every optimizer's step, after torch closed its own `Optimizer.step#` range.

    torch's global hooks run inside that range, where a profiler window could not begin or end without tearing it.
    """
    optimizer_class = torch.optim.Optimizer
    wrap_in_range = optimizer_class.profile_hook_step
    is_compiling = torch.compiler.is_compiling
    depth = 0
    stepped = guarded(steps.optimizer_stepped)

    def watched(step: Callable[..., Any], raw: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
        @functools.wraps(raw)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if is_compiling() or steps.passive:
                return step(*args, **kwargs)
            depth += 1
            try:
                result = step(*args, **kwargs)
            finally:
                depth -= 1
            steps.optimizer_calls += 1
            steps.on_optimizer(args[0])
            if depth == 0:
                stepped(args[0])
            return result

        call.diagnose_step = True  # type: ignore[attr-defined]
        return call

    watching = contained(watched)

    @unseen
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        in_range: Callable[..., Any] = wrap_in_range(func)
        return watching(in_range, func) or in_range

    optimizer_class.profile_hook_step = staticmethod(profile_hook_step)
    steps.hook_again = functools.partial(_hook_again, torch, watched)


def _hook_again(torch: Any, watched: Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]) -> None:
    """Hook the optimizers again: some torch versions take the hooks off when torch.compile is first used."""
    optimizer_class = torch.optim.Optimizer
    for found in list(vars(torch.optim).values()):
        if isinstance(found, type) and issubclass(found, optimizer_class) and found is not optimizer_class:
            step: Any = vars(found).get("step")
            if getattr(step, "hooked", False) and not _is_watched(step):
                hooked = watched(step, step)
                hooked.hooked = True  # type: ignore[attr-defined]
                found.step = hooked  # type: ignore[attr-defined]


def _is_watched(step: Any) -> bool:
    while step is not None:
        if getattr(step, "diagnose_step", False):
            return True
        step = getattr(step, "__wrapped__", None)
    return False


def hook_backward(torch: Any, steps: StepHooks) -> None:
    """Count backward passes, whoever calls them, where they enter the engine."""
    autograd = torch.autograd
    run = autograd._engine_run_backward
    entered, left = contained(steps.enter_backward), guarded(steps.leave_backward)

    @unseen
    @functools.wraps(run)
    def watched_run(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("accumulate_grad", False) or not entered():
            return run(*args, **kwargs)
        done = False
        try:
            result = run(*args, **kwargs)
            done = True
        finally:
            left(done)
        return result

    autograd._engine_run_backward = watched_run


def hook_loader(_torch: Any, steps: StepHooks) -> None:
    """Time a DataLoader's `__iter__` (it starts workers) and every `__next__`."""
    from torch.utils.data import dataloader

    entered, left = contained(steps.enter_input), guarded(steps.leave_input)

    came_from = guarded(steps.iterator_built)

    def watched(method: Callable[..., Any], name: str, fetches: bool) -> Callable[..., Any]:
        @unseen
        @functools.wraps(method)
        def call(self: Any) -> Any:
            start = entered()
            if not start:
                return method(self)
            fetched = False
            try:
                result = method(self)
                fetched = fetches
            finally:
                left(start, name, fetched)
            if fetched:
                steps.loader = weakref.ref(self)
            elif not fetches:
                came_from(result, self)
            return result

        return call

    iterator, loader = dataloader._BaseDataLoaderIter, dataloader.DataLoader
    iterator.__next__ = watched(iterator.__next__, "DataLoader.__next__", fetches=True)  # type: ignore[method-assign]
    loader.__iter__ = watched(loader.__iter__, "DataLoader.__iter__", fetches=False)  # type: ignore[method-assign]


def hook_scaler(torch: Any, steps: StepHooks) -> None:
    """Count a step that GradScaler skips because of an overflow."""
    scaler_class = torch.amp.GradScaler
    step = scaler_class.step
    skipped = guarded(steps.optimizer_stepped)

    @unseen
    @functools.wraps(step)
    def watched_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps.optimizer_calls
        result = step(self, optimizer, *args, **kwargs)
        if steps.optimizer_calls == before and not steps.passive:
            skipped(optimizer)
        return result

    scaler_class.step = watched_step
