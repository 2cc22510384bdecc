"""One data loader that feeds training, and what keeps it from having workers or from loading ahead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from diagnose.model import Scalar, Site
from diagnose.source.batches.first_batch import late_first_batch
from diagnose.source.batches.loader_lifetime import is_built_again, is_for_one_pass, opened_beside_itself
from diagnose.source.batches.option_reads import option_read
from diagnose.source.batches.signal_handlers import handler_in_workers
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.daemonic_processes import daemon_that_runs
from diagnose.source.dataflow.flow import is_repeated
from diagnose.source.samples.dataset_rng import Draw, sample_draw
from diagnose.source.samples.device_samples import device_samples
from diagnose.source.samples.sharing.shared_state import SharedState, shared_state
from diagnose.source.samples.sharing.statement_order import When
from diagnose.source.settings.options import CallOptions
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import Splice, call_name
from diagnose.source.tree.memo import files_with, parse_all
from diagnose.source.tree.syntax import Source
from diagnose.source.tree.text_lines import any_matches

_DEVICE = re.compile(r"\.cuda\(|device\s*=\s*[\"']cuda|\.to\(\s*[\"']cuda")

_SPAWNS = re.compile(
    r"(?:set_start_method|get_context)\(\s*[\"'](?:spawn|forkserver)|_context\s*=\s*[\"'](?:spawn|forks)"
)
"""How a program says that its processes are no copies of it."""
_GUARD = re.compile(r"__name__\s*==|==\s*__name__")
_MATRIX_FUNCTIONS = ("cholesky", "eigh", "eigvalsh", "inv", "lstsq", "pinv", "qr", "solve", "svd", "svdvals")
_SPLIT_OVER_THREADS = (
    *("torch.nn.functional.interpolate", "torch.fft.", "torch.inverse", "torch.mv"),
    *(f"torch.linalg.{name}" for name in _MATRIX_FUNCTIONS),
)
"""Functions that share out a sample of ordinary size among threads, in parts that round otherwise: of matrices with
some 200 rows, `qr` of 64."""
_WATCHES = re.compile(
    r"\b(?:active_children|active_count|setprofile|settrace|threading\.enumerate|os\.wait3?|os\.waitpid\(-1)\b|\bSIGCHLD\b"
    r"|\bRUSAGE_CHILDREN\b|\bpsutil\.Process\([^)]*\)\.children\b"
)
"""Matches calls that show the children and threads of a process, or that trace its functions and none of a worker's."""


@dataclass(frozen=True)
class Loader:
    """A `DataLoader(…)` in a file of the user's, or the arguments by which a library's trainer builds one."""

    options: CallOptions
    site: Site | None = None
    """The call as the run recorded it."""
    drew: Site | None = None
    """The place where the run saw samples of its dataset draw random numbers."""

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.options.path}:{self.options.source.lines_of(self.options.node)[0]}"

    @property
    def workers(self) -> int:
        """How many it has, as far as that is known."""
        count = self.options.value("num_workers")
        return count if isinstance(count, int) else 0

    @property
    def has_workers(self) -> str:
        """Code that says whether it has any: `True`, or a comparison where that is decided elsewhere."""
        given = self.options.given("num_workers")
        setting = self.options.setting("num_workers", trusted=False)
        if (options := self.options.options_with_workers) is not None:
            return f'{options}.get("num_workers", 0) > 0'
        if given is None or (setting is not None and setting.fixed and setting.form != "command"):
            return "True"  # another command line may give another number
        return "True" if _is_above_zero(given) else f"{self.options.source.code(given)} > 0"

    @property
    def keeps_workers(self) -> bool:
        """Whether the workers that it may get live on from one epoch to the next: `persistent_workers=count > 0`."""
        given = self.options.given("persistent_workers")
        return given is not None and self.options.source.code(given) != "False" and not self.made_again

    @property
    def device_use(self) -> str | None:
        """Return where its samples are put on a device before it hands them out; None where that is not seen."""
        found = next(device_samples(self.shared.code), None) if self.shared is not None else None
        if found is not None:
            return f"{found.words}: {found.where}"
        its = self._dataset()
        called = its is not None and _DEVICE.search(its[0].code(its[1])) is not None
        return "uses the CUDA device" if called else None

    @property
    def split_over_threads(self) -> str | None:
        """Code of a call by which samples are computed otherwise, up to rounding, with one thread than with several."""
        if self.shared is None or self.workers > 0:
            return None
        code = self.shared.code
        for node, path in code.sampling.items():
            for call in code.calls(path, node):
                if code.sources[path].is_called(call.func, *_SPLIT_OVER_THREADS):
                    return code.sources[path].code(call.func)
        return None

    @property
    def made_in_a_loop(self) -> bool:
        """Whether a loop builds the loader anew in each turn, so that its workers cannot live on."""
        return is_repeated(self.options.source, self.options.node)

    @property
    def made_again(self) -> bool:
        """Whether a loop builds the loader in each turn, or calls the function that does."""
        return is_built_again(self.options.sources, self.options.source, self.options.node)

    @property
    def for_one_pass(self) -> bool:
        """Whether the loader is built where a `for` goes through it, so that nothing does so again."""
        return is_for_one_pass(self.options.sources, self.options.source, self.options.node)

    @property
    def is_stream(self) -> bool:
        """Whether its dataset yields samples in an order of its own."""
        found = self._dataset()
        return (self.site is not None and self.site.arguments.get("iterable") is True) or bool(
            found and any("IterableDataset" in found[0].code(base.value) for base in found[1].bases)
        )

    def why_no_workers(self) -> str | None:
        """Return what the dataset does that worker processes would break; None where nothing."""
        found = self._dataset()
        code = found[0].code(found[1]) if found else ""
        if self.is_stream and "get_worker_info" not in code:
            return (
                "feeds an IterableDataset that does not ask torch.utils.data.get_worker_info() which part is its own: "
                "workers would each yield all samples. Split the samples in its __iter__ first."
            )
        if (use := self.device_use) is not None:
            return f"feeds a dataset that {use}. Worker processes cannot use the device: move data after loading."
        told = self.shared.told_of_workers if self.shared is not None and self.workers == 0 else None
        if told is not None:
            return f"has a worker_init_fn that {told.words.replace(' while it makes a sample', '')}: {told.where}."
        return (
            self.why_not_read("num_workers")
            or self.why_not_read("prefetch_factor")
            or self.why_not_ahead()
            or self._why_not_copied()
            or self._why_not_spawned()
            or self._why_no_children()
        )

    def why_not_read(self, option: str) -> str | None:
        """Return where the program reads an option of the loader, which would be another; None where it does not."""
        if self.options.names:
            return None
        where = option_read(self.options.sources, self.options.source, self.options.node, option)
        return f"has its {option} read by the program: {where}. Set it there by hand." if where else None

    def why_not_pinned(self) -> str | None:
        """Return what the program does to batches that copies of them would not affect; None where nothing."""
        if (use := self.device_use) is not None:
            return f"feeds a dataset that {use}. Tensors of a device cannot be pinned."
        found = next(self.shared.changed_by_training(), None) if self.shared is not None else None
        return f"feeds a dataset that {found.words}: {found.where}. Pinned batches are copies." if found else None

    def why_not_ahead(self) -> str | None:
        """Return what the program does that would not affect batches loaded ahead of time; None where nothing."""
        if self.shared is None:
            return None
        found = self.shared.change(When.DURING, copied=self.workers > 0) or self.shared.trace
        if found is not None:
            return f"feeds a dataset that {found.words}: {found.where}. Samples that are loaded ahead would differ."
        return self.why_no_order_ahead()

    def why_no_order_ahead(self) -> str | None:
        """Return what the program does to its sampler that would not affect samples chosen ahead of time; None where
        nothing.
        """
        late = late_first_batch(self.options.sources) if self._draws_order else None
        if late is not None:
            return f"has an iterator that is not asked for its first batch at once: {late}. Its order would be another."
        names = ("sampler", "batch_sampler", "generator")
        given = [] if self.options.names else [self.options.given(name) for name in names]
        made_by = tuple(each for each in given if each is not None)
        if not made_by:
            return None
        order = shared_state(self.options.sources, self.options.path, self.options.node, made_by, (), None, False)
        reads = (found for name in sorted(self._generators(order)) for found in order.reads(name, When.DURING))
        found = next(reads, None) or order.change(When.DURING) or order.trace or next(order.late(), None)
        if found is None and self.workers == 0 and self._is_asked_itself:
            found = next(order.draws_at_once(), None)
        if found is None:
            return None
        return f"has a sampler that {found.words}: {found.where}. An order that is asked for ahead would differ."

    def _generators(self, order: SharedState) -> set[str]:
        """Last parts of the names of generators that its order is drawn from; some draws wait for the last samples."""
        calls = [
            call
            for made, path in order.code.building.items()
            for call in order.code.sources[path].every(cst.Call, made)
        ]
        given = [arg.value for call in calls if (arg := argument(call, "generator")) is not None]
        own = self.options.given("generator")
        found = [*given, *([own] if own is not None else [])]
        names = {each.attr.value if isinstance(each, cst.Attribute) else getattr(each, "value", "") for each in found}
        return {name for name in names if isinstance(name, str)} - {"None", ""}

    @property
    def _is_asked_itself(self) -> bool:
        """Whether the loader asks its sampler for an iterator, and no `BatchSampler` of torch does when it begins."""
        size = self.options.given("batch_size")
        return self.options.given("batch_sampler") is not None or (isinstance(size, cst.Name) and size.value == "None")

    @property
    def _draws_order(self) -> bool:
        """Whether the loader shuffles, or a sampler chooses, as far as the code shows."""
        shuffle = self.options.given("shuffle")
        plain = shuffle is None or (isinstance(shuffle, cst.Name) and shuffle.value == "False")
        return not plain or any(self.options.given(name) is not None for name in ("sampler", "batch_sampler"))

    def _why_not_copied(self) -> str | None:
        """Return what its dataset holds that processes must not share."""
        found = self.shared.handle if self.shared is not None else None
        if found is None:
            return None
        return f"feeds a dataset that {found.words}: {found.where}. Open it at the first sample that a worker makes."

    def _why_not_spawned(self) -> str | None:
        """Return what keeps a dataset from being sent to a process that does not begin as a copy of this one."""
        context = self.site.arguments.get("multiprocessing_context") if self.site is not None else None
        spawns = context in {"spawn", "forkserver"} or any_matches(_SPAWNS, self.options.sources.values())
        if self.shared is None or not spawns:
            return None
        found = next(self.shared.unsent(), None) or self.shared.change(When.BETWEEN)
        if found is not None:
            return f"feeds a dataset that {found.words}: {found.where}. A process that is spawned would not have it."
        if not any_matches(_GUARD, self.options.sources.values()):
            return "stands in a program that spawns processes and has no main guard: each would run the program anew."
        return None

    def _why_no_children(self) -> str | None:
        """Return what runs it in a process that may start none, or has its children handle signals."""
        if self.options.names:
            return None
        sources = parse_all(self.options.sources)
        where = daemon_that_runs(sources, self.options.path, self.options.node)
        if where is not None:
            return f"runs in a daemonic process, which may have no children: {where} starts it."
        if self.workers == 0 and any_matches(_WATCHES, self.options.sources.values()):
            return "stands in a program that watches its processes, threads or calls, which workers would change."
        where = handler_in_workers(sources)
        if where is None or self.workers > 0:
            return None
        return (
            f"stands in a program whose handler of a signal would run in each worker too: {where}. Let it set a flag "
            "that the loop asks for."
        )

    def why_none_live_on(self) -> str | None:
        """Return what the program does that workers which live on would not go along with; None where nothing."""
        if self.options.names:
            return None
        beside = opened_beside_itself(self.options.sources, self.options.source, self.options.node)
        if beside is not None:
            return (
                f"is gone through while the program goes through it already: {beside}. Workers that live on make "
                "batches for one pass at a time: the first would go on with those of the second."
            )
        found = self.shared and (self.shared.change(When.BETWEEN) or self.shared.trace)
        return f"feeds a dataset that {found.words}: {found.where}." if found else None

    @cached_property
    def shared(self) -> SharedState | None:
        """The state that the loader's samples share with the program; None where a library builds the loader."""
        if self.options.names:
            return None
        recorded = self.site.arguments if self.site is not None else {}
        given = [self.options.given(name) for name in ("dataset", "collate_fn")]
        return shared_state(
            self.options.sources,
            self.options.path,
            self.options.node,
            tuple(expression for expression in given if expression is not None),
            tuple(name for name in (recorded.get("dataset"), recorded.get("collate_fn")) if isinstance(name, str)),
            self.options.given("worker_init_fn"),
        )

    def draw(self) -> Draw | None:
        """A random number that goes into its samples, where one is seen."""
        recorded = self.site.arguments if self.site is not None else {}
        given = [self.options.given(name) for name in ("dataset", "collate_fn")] if not self.options.names else []
        names = tuple(name for name in (recorded.get("dataset"), recorded.get("collate_fn")) if isinstance(name, str))
        made_by = tuple(expression for expression in given if expression is not None)
        init = self.options.given("worker_init_fn") if not self.options.names else None
        found = sample_draw(self.options.sources, self.options.path, made_by, names, init)
        if found is None and self.drew is not None:
            return Draw(str(self.drew.arguments.get("generators")), self.drew.line, self.drew.file)
        return found

    def _dataset(self) -> tuple[Source, cst.ClassDef] | None:
        """The class of the dataset, by the name that the run recorded or that the source shows."""
        name = self.site.arguments.get("dataset") if self.site is not None else None
        given = argument(self.options.node, "dataset", 0) if not self.options.names else None
        value = given.value if given else None
        if name is None and isinstance(value, cst.Name):
            bound = binding_of(self.options.source, value)
            value = bound.value if bound is not None else value
        if name is None and isinstance(value, cst.Call):
            name = call_name(value)
        files = files_with(self.options.sources, f"class {name}")
        return next(((parsed, found) for _, parsed in files for found in parsed.classes_named(str(name))), None)


def set_option(
    loaders: Iterable[Loader],
    name: str,
    value: Scalar,
    why_not: Callable[[Loader], str | None],
    code: Callable[[Loader], str] | None = None,
) -> tuple[list[tuple[str, Sequence[Splice]]], list[str]]:
    """The edits that give loaders an option, and for each that has none why not; `code` is written instead of `value`
    where the call itself says it.
    """
    edits: list[tuple[str, Sequence[Splice]]] = []
    reasons: list[str] = []
    for loader in loaders:
        reason = why_not(loader) or loader.why_not_read(name)
        if reason:
            reasons.append(f"{loader.where} {reason}")
            continue
        placed = loader.options.place(name, value, code=code(loader) if code is not None else None)
        edits += placed.edits.items()
        reasons += [placed.reason] if placed.reason else []
    return edits, reasons


def _is_above_zero(count: cst.BaseExpression) -> bool:
    """Whether a number is above zero whatever it is made of: `max(args.workers, 2)`, `os.cpu_count()`."""
    if not isinstance(count, cst.Call):
        return False
    least = any(isinstance(arg.value, cst.Integer) and arg.value.evaluated_value > 0 for arg in count.args)
    return call_name(count) == "cpu_count" or (call_name(count) == "max" and least)
