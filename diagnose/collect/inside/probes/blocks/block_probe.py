"""Measures the repeated blocks of the model: what each keeps for the backward pass, and what its forward pass takes.

What activation checkpointing is planned from (`diagnose.memory`). Blocks are children of one class in a container
(`ModuleList`, `Sequential`, `ModuleDict`), wherever the program calls them. For the first few steps, all before a
window may open, calls of modules go by here:

    step 0   what the allocator holds before and after each block: all there will be where memory runs out in it
    step 2   the same with the peaks in between, forward and backward; for that the allocator's peak is reset
    step 3   times

then calls are as they were. On a host without a device's allocator, what autograd saves is counted instead. Where
anything is compiled, nothing is measured: compiled code would take the measuring in. Nor is it where the program sees
operators by a dispatch mode of its own: autograd calls other operators while somebody counts what it saves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...guard import guarded
from ...hooks.sites import Sites
from ...transparency import unseen
from .allocator_fragmentation import fragments
from .block_calls import Call, described, last_pass, turned
from .saved_tensors import SavedTensors

KIND = "blocks"
"""The kind of site that a line which calls blocks leaves."""
MEMORY_FIRST, MEMORY, TIMES = 0, 2, 3
"""The steps that are looked at."""
_MOST_BLOCKS = 512
_MOST_CALLS = 50_000
"""Within one step; a program that calls its model without end takes no steps."""


class Blocks:
    """The probe of one process; `step_ended` turns what was seen into sites."""

    def __init__(self, sites: Sites, on_peak: Callable[[int], object] = lambda _bytes: None) -> None:
        """`on_peak` is told the allocator's peak before it is reset."""
        self._sites = sites
        self._on_peak = on_peak
        self._torch: Any = None
        self._original: Any = None
        self._patched: Any = None
        self._index = 0
        self._ordinal: int | None = None
        self._inside = False
        self._roots: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._blocks: list[tuple[Any, int, Any]] = []
        """Container, place in it, block: kept alive, so that no other module gets the id of one."""
        self._names: list[str] = []
        """Names of their containers, from the module that the program calls: `transformer.h`."""
        self._saved: SavedTensors | None = None
        self._calls: list[Call] = []
        self._memory: list[Call] = []
        self._times: list[Call] = []
        self._rest_peak = 0
        self._fragments: int | None = None
        """The bytes that the allocator could not give back, at the end of the forward pass."""
        self._between = 0
        """The peak while blocks were computed again, since the last block's backward pass began."""
        self._turns: list[int] = []
        """Peaks after the last block's forward pass: until the backward pass began, and in its steps since."""
        self._told = False
        self.step_ended: Callable[[int], None] = guarded(self._step_ended)
        self.stop: Callable[[], None] = guarded(self._stop)
        self.finish: Callable[[], None] = guarded(self._finish)

    def install(self, torch: Any) -> None:
        """Have calls of modules go by here, until `stop`."""
        self._torch = torch
        self._saved = SavedTensors(torch)
        module = torch.nn.Module
        self._original = original = module.__call__
        probe = self
        modes = torch._C._len_torch_dispatch_stack

        @unseen
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            if probe._patched is None or torch.compiler.is_compiling() or modes() > 0:
                return original(self, *args, **kwargs)
            number = probe._numbers.get(id(self))
            in_backward = torch._C._current_graph_task_id() != -1
            if number is not None and (probe._inside or in_backward):
                return probe._block(number, in_backward, self, args, kwargs)
            if probe._inside or in_backward or not torch.is_grad_enabled() or not self.training:
                return original(self, *args, **kwargs)
            guarded(probe._look_at)(self)
            probe._inside = True
            try:
                result = original(self, *args, **kwargs)
            finally:
                probe._inside = False
            guarded(probe._left_model)(result)
            return result

        self._patched = module.__call__ = watched

    def restart(self) -> None:
        """Steps are counted anew."""
        self._calls = []
        self._index = 0

    def _stop(self) -> None:
        """Calls of modules are as they were."""
        if self._patched is None:
            return
        if self._torch.nn.Module.__call__ is self._patched:
            self._torch.nn.Module.__call__ = self._original
        self._patched = None
        if self._saved is not None:
            self._saved.close()
        for known in (self._roots, self._numbers, self._blocks):
            known.clear()

    def _finish(self) -> None:
        """Tell what is known; also of a program that ends within its first steps."""
        self._take_over()
        self.stop()
        self._tell()

    def _step_ended(self, index: int) -> None:
        if self._patched is None:
            return
        if self._index == MEMORY and self._on_device():
            self._rest_peak = max(self._read()[1], self._between)
        self._take_over()
        self._index = index + 1
        if self._index > TIMES:
            self.stop()
            self._tell()

    def _take_over(self) -> None:
        calls, self._calls = self._calls, []
        if self._saved is not None:
            self._saved.sizes.clear()
        passed = last_pass(calls)
        if self._index == TIMES:
            self._times = passed
        elif self._index in (MEMORY_FIRST, MEMORY) and (self._index == MEMORY or len(passed) >= len(self._memory)):
            self._memory = passed or self._memory

    def _look_at(self, root: Any) -> None:
        """Number the blocks in a module that is called as a whole."""
        if id(root) in self._roots:
            return
        self._roots[id(root)] = root
        names = {id(module): name for name, module in root.named_modules()}
        for container, place, block in repeated(self._torch, root):
            if id(block) not in self._numbers and len(self._blocks) < _MOST_BLOCKS:
                self._numbers[id(block)] = len(self._blocks)
                self._blocks.append((container, place, block))
                self._names.append(names[id(container)])

    @unseen
    def _block(self, number: int, again: bool, module: Any, args: Any, kwargs: Any) -> Any:
        call = guarded(self._enter)(number, module, again, args)
        if call is None:
            return self._original(module, *args, **kwargs)
        saved = self._saved if self._index != TIMES and not self._on_device() else None
        counts = saved is not None and saved.begin(module)
        try:
            result = self._original(module, *args, **kwargs)
        except BaseException:
            if again:  # torch ends a recomputation this way, once it has all that it needs
                guarded(self._leave)(call, None)
            raise
        finally:
            if saved is not None and counts:
                saved.end()
        guarded(self._leave)(call, result)
        return result

    def _enter(self, number: int, module: Any, again: bool, args: Any) -> Call | None:
        if len(self._calls) >= _MOST_CALLS:
            self.stop()
        if self._patched is None or self._index not in (MEMORY_FIRST, MEMORY, TIMES) or self._capturing():
            return None
        caller, user = self._sites.ownership.caller(sys._getframe(2))
        if caller is None:
            return None
        code = caller.f_code
        outer = f"{user.f_code.co_filename}:{user.f_lineno}" if user is not None and user is not caller else None
        line = (code.co_filename, caller.f_lineno, code.co_qualname, outer)
        call = Call(number, type(module).__name__, line, again)
        if not again and self._index == MEMORY:
            self._turns.clear()
        container, call.place, _ = self._blocks[number]
        call.through = _through(self._torch, sys._getframe(2), caller, container, module)
        call.turns, call.container = len(container), self._names[number]
        call.stateful = _is_stateful(self._torch, module)
        call.cast = _cast_bytes(self._torch, module)
        self._calls.append(call)
        if self._index == TIMES:
            call.begin = self._clock()
            return call
        given = _first_tensor(self._torch, args)
        if given is not None and not self._on_device():
            self._see(given)
        call.entered = self._read()
        self._between = max(self._between, call.entered[1]) if again else 0
        return call

    def _leave(self, call: Call, result: Any) -> None:
        if call.begin is not None:
            call.end = self._clock()
            return
        output = _first_tensor(self._torch, result)
        if output is not None:
            call.boundary = output.untyped_storage().nbytes()
            if not self._on_device():
                self._see(output)
        call.left = self._read()
        self._between = max(self._between, call.left[1]) if call.again else 0
        if output is not None and output.requires_grad and self._index == MEMORY and not call.again:
            output.register_hook(guarded(lambda _gradient: self._turned(call)))

    def _turned(self, call: Call) -> None:
        """The backward pass of a block begins: the gradient of its output is known."""
        if self._index == MEMORY and self._on_device():
            held, peak = self._read()
            call.turned = (held, max(peak, self._between))
            self._between = 0

    def _left_model(self, result: Any) -> None:
        """Watch for the gradient of what the whole model returned: it comes before that of any block."""
        output = _first_tensor(self._torch, result)
        if self._index == MEMORY and self._on_device() and output is not None and output.requires_grad:
            self._fragments = max(self._fragments or 0, guarded(self._read_fragments)() or 0)
            output.register_hook(guarded(lambda _gradient: self._backward_began()))

    def _backward_began(self) -> None:
        if all(call.turned is None for call in self._calls):  # or it is the output of the last block itself
            self._turns.append(self._read()[1])

    def _read_fragments(self) -> int:
        return fragments(self._torch.cuda.memory_snapshot())

    def _read(self) -> tuple[int, int]:
        if not self._on_device():
            held = sum(self._saved.sizes.values()) if self._saved is not None else 0
            return held, held
        figures = self._torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
        if self._index == MEMORY:
            self._on_peak(figures["peak"])
            self._torch.cuda.reset_peak_memory_stats()
        return figures["current"], figures["peak"]

    def _clock(self) -> Any:
        if not self._on_device():
            return time.perf_counter_ns()
        self._ordinal = int(self._torch.cuda.current_device())
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _see(self, tensor: Any) -> None:
        """Count a tensor that goes from block to block among the saved ones: autograd may save it or not."""
        if self._saved is not None:
            self._saved.sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    def _on_device(self) -> bool:
        return bool(self._torch.cuda.is_initialized())

    def _capturing(self) -> bool:
        return self._on_device() and bool(self._torch.cuda.is_current_stream_capturing())

    def _tell(self) -> None:
        lost = self._saved is not None and not self._saved.whole and not self._on_device()
        # Here the current device is the one trained on; events and figures were those of the program's current one.
        elsewhere = self._ordinal is not None and self._ordinal != self._torch.cuda.current_device()
        if self._told or lost or elsewhere or not self._memory:
            return
        self._told = True
        of_process = {"rest_peak_bytes": self._rest_peak or None, **turned(self._memory, self._turns)}
        of_process |= {"fragment_bytes": self._fragments, "blocks": len(self._names), "limit_bytes": self._limit()}
        for file, line, function, arguments in described(self._memory, self._times, self._rest_peak):
            self._sites.add(KIND, file, line, function, arguments | of_process)

    def _limit(self) -> int | None:
        """Return what the process may take of the device; None without one."""
        if not self._on_device():
            return None
        cuda = self._torch.cuda
        fraction = cuda.get_per_process_memory_fraction() if hasattr(cuda, "get_per_process_memory_fraction") else 1.0
        return int(cuda.get_device_properties(cuda.current_device()).total_memory * fraction)


def repeated(torch: Any, root: Any) -> Iterator[tuple[Any, int, Any]]:
    """Children of one class in one container, at least two and made of parts themselves; none within another.

    Each with its container and its place there.
    """
    containers = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    classes = [type(child) for child in root.children()] if isinstance(root, containers) else []
    for place, child in enumerate(root.children()):
        if classes.count(type(child)) > 1 and next(child.children(), None) is not None:
            yield root, place, child
        else:
            yield from repeated(torch, child)


def _through(torch: Any, frame: Any, line: Any, container: Any, block: Any) -> str:
    """Return how a line calls a block: itself in a `loop`, through its `container`, or through something `other`."""
    between = set()
    while frame is not None and frame is not line:
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and module is not block:
            between.add(id(module))
        frame = frame.f_back
    if not between:
        return "loop"
    return "container" if between == {id(container)} else "other"


def _is_stateful(torch: Any, module: Any) -> bool:
    """Whether its forward pass leaves something behind: to run it twice would count twice."""
    kinds = (torch.nn.modules.batchnorm._NormBase, torch.nn.utils.parametrizations._SpectralNorm)
    return any(isinstance(part, kinds) and getattr(part, "track_running_stats", True) for part in module.modules())


def _cast_bytes(torch: Any, module: Any) -> int:
    """Copies of the module's weights that autocast makes, and keeps until its region ends; 0 outside of one."""
    parameter = next(module.parameters(), None)
    kind = parameter.device.type if parameter is not None else "cpu"
    if not torch.is_autocast_enabled(kind) or not torch.is_autocast_cache_enabled():
        return 0
    size = torch.get_autocast_dtype(kind).itemsize
    found = 0
    for part in module.modules():
        own = [one for one in part.parameters(recurse=False) if one.dtype is torch.float32 and one.requires_grad]
        # Products and convolutions are cast, norms and embeddings are not.
        if any(one.dim() > 1 for one in own) and not isinstance(part, torch.nn.Embedding):
            found += sum(size * one.numel() for one in own)
    return found


def _first_tensor(torch: Any, result: Any) -> Any:
    """The tensor that a block hands on: alone, or first of what it returns."""
    while isinstance(result, tuple | list | dict) and result:
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return result if isinstance(result, torch.Tensor) else None
