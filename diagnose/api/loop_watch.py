"""`diagnose.watch`: records a training loop of this process and diagnoses it.

    for batch in diagnose.watch(loader): …        a step is one turn of the loop
    with diagnose.watch() as watched: …           a step ends with `optimizer.step()`, or with `watched.step()`

    waiting for steady steps → a lead-in step → traced steps → traced

It leaves the files of a watched rank (`diagnose.collect.records`) and reads them back. What changes the process while
it lasts, torch's profiler, one hook on optimizers and one on the garbage collector, is gone when the loop is over.
`diagnose run` sees more: it starts the program itself, so it also knows what the program built and which lines wait for
the device.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from diagnose.collect.inside.probes.ranges import SHORTEST_GC_NS
from diagnose.collect.inside.probes.stack_sampler import Sampler
from diagnose.collect.inside.process.process_facts import job_facts, process_facts, ranks_on_host
from diagnose.collect.inside.source_ownership import owned_roots
from diagnose.collect.inside.window.profiler_window import Window
from diagnose.collect.inside.window.steadiness import Steadiness
from diagnose.collect.records import FACTS, RANGES, STEPS, TRACE, WINDOW
from diagnose.errors import EnvironmentLacks, UsageError

if TYPE_CHECKING:
    from diagnose.api.analysis import Analysis, AnyPath

Batch = TypeVar("Batch")

_UNKNOWN = -1
_SAVING_S = 60.0
"""Seconds to wait for the trace to be written when the loop is over."""


@overload
def watch(
    batches: Iterable[Batch], *, steps: int = 4, warmup: int = 10, folder: AnyPath | None = None
) -> LoopWatch[Batch]: ...


@overload
def watch(*, steps: int = 4, warmup: int = 10, folder: AnyPath | None = None) -> LoopWatch[Any]: ...


def watch(
    batches: Iterable[Any] = (), *, steps: int = 4, warmup: int = 10, folder: AnyPath | None = None
) -> LoopWatch[Any]:
    """Watch a loop of this process; `.analysis` of what is returned is the diagnosis once the loop is over.

    Around `batches` a step is one turn of the loop over it. As a context manager a step ends with the step of the
    optimizer that steps first, or with `.step()` where that is called. `steps` of them are traced once steps are
    steady, after `warmup` at least. `folder` keeps the recording, for `diagnose analyze`; without it the recording goes
    with the returned object.
    """
    return LoopWatch(batches, steps=steps, warmup=warmup, folder=folder)


class LoopWatch(Generic[Batch]):
    """One watched loop. It can be used once."""

    def __init__(
        self, batches: Iterable[Batch] = (), *, steps: int = 4, warmup: int = 10, folder: AnyPath | None = None
    ) -> None:
        if steps < 1 or warmup < 1:
            raise UsageError(f"steps and warmup are at least 1, not {steps} and {warmup}")
        self._batches = batches
        self._wanted = steps
        self._warmup = warmup
        self._steady = Steadiness(warmup)
        self._kept = Path(folder) if folder is not None else None
        self._folder: Path | None = None
        self._torch: Any = None
        self._thread = 0
        self._marks = "optimizer"
        """What ends a step: `optimizer`, `batches` or `calls`."""
        self._marker: object = None
        """The optimizer whose steps are counted."""
        self._ends: list[tuple[int, int]] = []
        """Per step its end, and how long it waited for input; nanoseconds."""
        self._input_ns = _UNKNOWN
        self._ranges: list[dict[str, Any]] = []
        self._gc_start_ns = 0
        self._window = Window()
        self._record: dict[str, Any] = {}
        self._leading_in = False
        self._traced = False
        self._saving: threading.Thread | None = None
        self._sampler: Sampler | None = None
        self._cleaning = contextlib.ExitStack()
        self._analysis: Analysis | None = None

    @property
    def analysis(self) -> Analysis:
        """The diagnosis. Raises UsageError before the loop is over."""
        if self._folder is None or self.is_running:
            raise UsageError("the loop is not over yet; ask for its analysis after it")
        if self._analysis is None:
            self._analysis = self._diagnosed(self._folder)
        return self._analysis

    @property
    def is_running(self) -> bool:
        """Whether the loop is being watched now."""
        return self._sampler is not None

    def step(self) -> None:
        """Say that a step ended; from the first call on, optimizers no longer do."""
        if self._marks == "optimizer":
            self._marks = "calls"
            self._ends.clear()
            self._steady = Steadiness(self._warmup)
        self._step_ended()

    def __iter__(self) -> Iterator[Batch]:
        self._marks = "batches"
        with self:
            source = iter(self._batches)
            while True:
                begin = time.time_ns()
                try:
                    batch = next(source)
                except StopIteration:
                    return
                end = time.time_ns()
                self._input_ns = end - begin
                self._add_range("input", begin, end, "next")
                yield batch
                self._step_ended()

    def __enter__(self) -> Self:
        if self._folder is not None:
            raise UsageError("this loop was watched already; make another `diagnose.watch()` for the next one")
        if importlib.util.find_spec("torch") is None:
            raise EnvironmentLacks(f"PyTorch is not installed beside {sys.executable}; install it, then watch the loop")
        self._torch = importlib.import_module("torch")
        self._folder = self._rank_folder()
        self._thread = threading.get_ident()
        # `torch.optim` deletes the name of this module.
        optimizers = importlib.import_module("torch.optim.optimizer")
        hook = optimizers.register_optimizer_step_post_hook(self._optimizer_stepped)
        self._cleaning.callback(hook.remove)
        gc.callbacks.append(self._collected)
        self._cleaning.callback(gc.callbacks.remove, self._collected)
        self._sampler = Sampler(self._thread)
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cleaning.close()
        if self._window.is_open:
            self._stop_window()
        if self._saving is not None:
            self._saving.join(_SAVING_S)
        self._write()
        self._sampler = None

    # -- steps, on the thread that trains ---------------------------------------------------------------------------

    def _optimizer_stepped(self, optimizer: object, _args: Any, _kwargs: Any) -> None:
        if self._marks != "optimizer" or threading.get_ident() != self._thread:
            return
        self._marker = self._marker or optimizer
        if optimizer is self._marker:
            self._step_ended()

    def _step_ended(self) -> None:
        end = time.time_ns()
        self._ends.append((end, self._input_ns))
        if self._window.is_open:
            self._in_window(end)
        elif not self._traced and self._is_steady(end) and not Window.other_is_recording(self._torch):
            self._window.open(self._torch)
            self._leading_in = True
        elif self._record and not self._traced:
            self._stop_window()  # a profiler of the program's own took its place

    def _is_steady(self, end_ns: int) -> bool:
        return self._steady.reason is not None or self._steady.step_ended(end_ns)

    def _in_window(self, end_ns: int) -> None:
        """The lead-in step takes the profiler's own start, and is not counted."""
        if self._leading_in:
            self._leading_in = False
            self._record = {"start_ns": end_ns, "end_ns": end_ns, "first_step": len(self._ends), "steps": 0}
        else:
            self._record["steps"] += 1
            self._record["end_ns"] = end_ns
        if self._record["steps"] < self._wanted:
            self._window.mark_step(len(self._ends))
        else:
            self._stop_window()

    def _stop_window(self) -> None:
        self._traced = True
        self._window.stop()
        if self._sampler is not None:
            self._sampler.enabled = False  # what explains the traced steps is there
        # Not on the training thread: writing a window takes longer than a step.
        self._saving = threading.Thread(target=self._save_window, name="diagnose-export", daemon=True)
        self._saving.start()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        now = time.time_ns()
        if phase == "start":
            self._gc_start_ns = now
        elif self._gc_start_ns and now - self._gc_start_ns >= SHORTEST_GC_NS:
            self._add_range("gc", self._gc_start_ns, now, f"generation {info.get('generation')}")

    def _add_range(self, kind: str, start_ns: int, end_ns: int, name: str) -> None:
        if not self._traced:
            thread = threading.get_native_id()
            self._ranges.append({"k": kind, "s": start_ns, "e": end_ns, "n": name, "t": thread})

    # -- files ------------------------------------------------------------------------------------------------------

    def _rank_folder(self) -> Path:
        if self._kept is not None:
            root = self._kept
            if root.exists() and any(root.glob("rank*/" + FACTS)) and self._world_size() == 1:
                raise UsageError(f"{root} holds a recording already; name another folder")
        else:
            root = Path(tempfile.mkdtemp(prefix="diagnose-"))
            weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        folder = root / f"rank{self._rank()}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _rank(self) -> int:
        distributed = self._distributed()
        return int(distributed.get_rank()) if distributed else 0

    def _world_size(self) -> int:
        distributed = self._distributed()
        return int(distributed.get_world_size()) if distributed else 1

    def _distributed(self) -> ModuleType | None:
        found: Any = getattr(self._torch, "distributed", None)
        return found if found is not None and found.is_available() and found.is_initialized() else None

    def _save_window(self) -> None:
        assert self._folder is not None
        self._window.save(self._folder / TRACE)

    def _write(self) -> None:
        assert self._folder is not None and self._sampler is not None
        self._sampler.stop()
        texts = dict(self._sampler.drain())
        texts[STEPS] = "".join(json.dumps({"t": end, "b": _UNKNOWN, "w": waited}) + "\n" for end, waited in self._ends)
        texts[RANGES] = "".join(json.dumps(one) + "\n" for one in self._ranges)
        steady = self._steady.reason or self._steady.so_far(self._marks)
        if self._record:
            texts[WINDOW] = json.dumps({**self._record, "steady": steady})
        facts = {
            **process_facts(self._torch),
            "step_ns_watched": self._steady.step_ns or self._steady.median_ns(),
            "steady": steady,
            "rank": self._rank(),
            "world_size": self._world_size(),
            "local_world_size": ranks_on_host(self._world_size()),
            "pid": os.getpid(),
            "job": job_facts(),
            "owned_roots": [*owned_roots(), *_folders_of_cells()],
            "sample_period_s": self._sampler.period_s,
            "sample_cost_ns": self._sampler.cost_ns,
        }
        texts[FACTS] = json.dumps(facts)
        for name, text in texts.items():
            (self._folder / name).write_text(text, encoding="utf-8")

    def _diagnosed(self, folder: Path) -> Analysis:
        from dataclasses import replace

        from diagnose.api.analysis import analysis_of
        from diagnose.trace.readers import open_traces

        analysis = analysis_of(open_traces([folder]))
        if self._kept is None:
            analysis = replace(analysis, diagnosis=replace(analysis.diagnosis, source=("a loop of this process",)))
        if self._record.get("steps"):
            return analysis
        why = (
            f"the loop ended after {len(self._ends)} steps, before any could be traced: what is said rests on the step "
            f"log and samples alone; let it run for longer, or lower warmup (now {self._warmup})"
        )
        diagnosis = analysis.diagnosis
        return replace(analysis, diagnosis=replace(diagnosis, warnings=(why, *diagnosis.warnings)))


def _folders_of_cells() -> list[str]:
    """Return the folders in which ipykernel keeps the cells of a notebook."""
    if "ipykernel" not in sys.modules:
        return []
    return [str(Path(tempfile.gettempdir()) / f"ipykernel_{os.getpid()}")]
