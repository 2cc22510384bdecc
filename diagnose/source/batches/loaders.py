"""The data loaders that feed training: where the program builds them, and what keeps them from having workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import libcst as cst

from diagnose.model import Place, Site
from diagnose.source.batches.dataset_rng import Draw, sample_draw
from diagnose.source.batches.first_batch import late_first_batch
from diagnose.source.batches.loader_lifetime import is_built_again, is_for_one_pass, opened_beside_itself
from diagnose.source.batches.shared_state import SharedState, When, shared_state
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.daemonic_processes import daemon_that_runs
from diagnose.source.dataflow.flow import is_repeated, within
from diagnose.source.settings.options import CallOptions
from diagnose.source.settings.shown_options import shows_attribute
from diagnose.source.settings.trainers import trainers_of
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name, calls_at, parse
from diagnose.source.tree.syntax import Source

POSITIONS = {"dataset": 0, "batch_size": 1, "shuffle": 2, "num_workers": 5, "collate_fn": 6, "pin_memory": 7}
_DRAWS = "draws"
"""The kind of site at which a run saw random numbers go into samples: `collect/inside/probes/rng_use.py` records it."""
_DEVICE = re.compile(r"\.cuda\(|device\s*=\s*[\"']cuda|\.to\(\s*[\"']cuda")

_SPAWNS = re.compile(
    r"(?:set_start_method|get_context)\(\s*[\"'](?:spawn|forkserver)|_context\s*=\s*[\"'](?:spawn|forks)"
)
"""How a program says that its processes are no copies of it."""
_GUARD = re.compile(r"__name__\s*==|==\s*__name__")


@dataclass(frozen=True)
class Loader:
    """A `DataLoader(…)` in a file of the user's, or the arguments by which a library's trainer builds one."""

    options: CallOptions
    site: Site | None = None
    """As the run recorded it."""
    drew: Site | None = None
    """Where the run saw samples of its dataset draw random numbers."""

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
        if given is None and (options := self.options.unknown_options) is not None:
            return f'{options}.get("num_workers", 0) > 0'
        if given is None or (setting is not None and setting.fixed):
            return "True"
        code = self.options.source.code(given)
        return "True" if code.startswith("max(") else f"{code} > 0"

    @property
    def keeps_workers(self) -> bool:
        """Whether the workers that it may get live on from one epoch to the next: `persistent_workers=count > 0`."""
        given = self.options.given("persistent_workers")
        return given is not None and self.options.source.code(given) != "False" and not self.made_again

    @property
    def uses_device(self) -> bool:
        """Whether its dataset makes tensors on a CUDA device."""
        found = self._dataset()
        return found is not None and _DEVICE.search(found[0].code(found[1])) is not None

    @property
    def made_in_a_loop(self) -> bool:
        """Whether it is built anew in each turn of a loop, so that its workers cannot live on."""
        return is_repeated(self.options.source, self.options.node)

    @property
    def made_again(self) -> bool:
        """Whether it is, or the function that builds it is called in each turn of one."""
        return is_built_again(self.options.sources, self.options.source, self.options.node)

    @property
    def for_one_pass(self) -> bool:
        """Whether it is built where a `for` goes through it, so that nothing does so again."""
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
        if self.uses_device:
            return "feeds a dataset that uses the CUDA device, which worker processes cannot: move data after loading."
        if self._shows_workers:
            return "is asked how many workers it has, and the program shows that: set num_workers there by hand."
        return self.why_not_ahead() or self._why_not_copied() or self._why_not_spawned() or self._why_no_children()

    @property
    def _shows_workers(self) -> bool:
        """Whether the program prints or writes what `num_workers` the loader has."""
        assign = self.options.source.parent(self.options.node)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        last = target.attr if isinstance(target, cst.Attribute) else target
        return isinstance(last, cst.Name) and shows_attribute(self.options.sources, last.value, "num_workers")

    def why_not_pinned(self) -> str | None:
        """Return what the program does to batches that copies of them would not affect; None where nothing."""
        if self.uses_device:
            return "feeds a dataset that uses the CUDA device: its tensors cannot be pinned."
        found = next(self.shared.changed_by_training(), None) if self.shared is not None else None
        return f"feeds a dataset that {found.words}: {found.where}. Pinned batches are copies." if found else None

    def why_not_ahead(self) -> str | None:
        """Return what the program does that would not affect batches loaded ahead of time; None where nothing."""
        if self.shared is None:
            return None
        found = self.shared.change(When.DURING) or self.shared.trace
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
        reads = (found for name in self._generators(order) for found in order.reads(name, When.DURING))
        found = next(reads, None) or order.change(When.DURING) or order.trace or next(order.late_draws(), None)
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
    def _draws_order(self) -> bool:
        """Whether it shuffles, or a sampler chooses, as far as the code shows."""
        shuffle = self.options.given("shuffle")
        plain = shuffle is None or (isinstance(shuffle, cst.Name) and shuffle.value == "False")
        return not plain or any(self.options.given(name) is not None for name in ("sampler", "batch_sampler"))

    def _why_not_copied(self) -> str | None:
        """What its dataset holds that processes must not share."""
        found = next(self.shared.handles(), None) if self.shared is not None else None
        if found is None:
            return None
        return f"feeds a dataset that {found.words}: {found.where}. Open it at the first sample that a worker makes."

    def _why_not_spawned(self) -> str | None:
        """What keeps a dataset from being sent to a process that does not begin as a copy of this one."""
        context = self.site.arguments.get("multiprocessing_context") if self.site is not None else None
        spawns = context in {"spawn", "forkserver"} or any(map(_SPAWNS.search, self.options.sources.values()))
        if self.shared is None or not spawns:
            return None
        found = next(self.shared.unsent(), None) or self.shared.change(When.BETWEEN)
        if found is not None:
            return f"feeds a dataset that {found.words}: {found.where}. A process that is spawned would not have it."
        if not any(_GUARD.search(text) for text in self.options.sources.values()):
            return "stands in a program that spawns processes and has no main guard: each would run the program anew."
        return None

    def _why_no_children(self) -> str | None:
        """What runs it in a process that may start none."""
        if self.options.names:
            return None
        parsed = {path: parse(text) for path, text in self.options.sources.items()}
        sources = {path: source for path, source in parsed.items() if source is not None}
        where = daemon_that_runs(sources, self.options.path, self.options.node)
        return f"runs in a daemonic process, which may have no children: {where} starts it." if where else None

    def why_none_kept(self) -> str | None:
        """Return what the program shares with its dataset that persistent workers, or kept samples, would not see; None
        where nothing.
        """
        if self.shared is None:
            return None
        found = self.shared.change(When.BETWEEN) or self.shared.trace
        return f"feeds a dataset that {found.words}: {found.where}." if found is not None else None

    def why_none_live_on(self) -> str | None:
        """Return what the program does that workers which live on would not go along with; None where nothing."""
        if self.options.names:
            return None
        beside = opened_beside_itself(self.options.sources, self.options.source, self.options.node)
        if beside is None:
            return self.why_none_kept()
        return (
            f"is gone through while the program goes through it already: {beside}. Workers that live on make batches "
            "for one pass at a time: the first would go on with those of the second."
        )

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
        for text in self.options.sources.values():
            parsed = parse(text) if f"class {name}" in text else None
            for found in parsed.every(cst.ClassDef) if parsed else ():
                if found.name.value == name and parsed is not None:
                    return parsed, found
        return None


@dataclass(frozen=True)
class LoadersFound:
    """Loaders to work on, and sites that lie in code that is not the user's."""

    loaders: tuple[Loader, ...]
    foreign: tuple[Site, ...] = ()
    drew: tuple[Site, ...] = ()
    """Where the run saw samples draw random numbers, of whatever loader."""


def find_loaders(
    sources: Mapping[str, str],
    sites: Sequence[Site],
    places: Sequence[Place] = (),
    configs: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    *,
    accelerated: bool = False,
) -> LoadersFound:
    """The loaders that a finding names, else those that shuffle, else all. Without recorded sites those in the text.

    `accelerated`: the run had an accelerator, and options are for that.
    """
    known = [site for site in sites if site.kind == "DataLoader"]
    named = {(place.file, place.line) for place in places}
    chosen = (
        [site for site in known if (site.file, site.line) in named]
        or [site for site in known if site.arguments.get("shuffle") is True]
        or known
    )
    found: list[Loader] = []
    foreign: list[Site] = []
    for site in chosen:
        source = parse(sources[site.file]) if site.owned and site.file in sources else None
        calls = calls_at(source, site.line, _names_of(source, site)) if source is not None else []
        if source is None or not calls or _is_nested(source, calls):
            told = _of_trainer(site, sources, configs or {}, words)
            if told is not None:
                found.append(told)
            elif not _wraps_another(site, known):
                foreign.append(site)
            continue
        for call in calls:
            its = site if call is calls[0] else None  # a line is recorded once, with what its first call was given
            recorded = its.arguments if its is not None else {}
            options = CallOptions(
                site.file, source, call, sources, configs or {}, words, recorded, POSITIONS, {}, accelerated
            )
            if all(each.options.node is not call for each in found):
                found.append(Loader(options, its))
    if not known:
        found = _in_text(sources, configs or {}, words)
        found = [replace(each, options=replace(each.options, accelerated=accelerated)) for each in found]
    drew = tuple(site for site in sites if site.kind == _DRAWS)
    return LoadersFound(tuple(_with_draws(each, drew) for each in found), tuple(foreign), drew)


def _is_nested(source: Source, calls: Sequence[cst.Call]) -> bool:
    return any(one is not other and within(source, one, other) for one in calls for other in calls)


def _with_draws(loader: Loader, drew: Sequence[Site]) -> Loader:
    """The loader with what the run saw of the samples of its dataset."""
    dataset = loader.site.arguments.get("dataset") if loader.site is not None else None
    its = next((site for site in drew if site.arguments.get("dataset") == dataset is not None), None)
    return replace(loader, drew=its)


def _names_of(source: Source, site: Site) -> set[str]:
    """What the call of a recorded loader may call: torch's class, the program's own kind of it, a variable for one.

    In the constructor of the program's own kind also that of the class above it.
    """
    own = site.arguments.get("name")
    classes = {"DataLoader", *([own] if isinstance(own, str) else [])}
    variables = {
        target.target.value
        for assign in source.every(cst.Assign)
        if not any(source.every(cst.Call, assign.value))
        and any(name.value in classes for name in source.every(cst.Name, assign.value))
        for target in assign.targets
        if isinstance(target.target, cst.Name)
    }
    own_kind = (site.function or "").endswith(".__init__") and "super(" in source.text
    return classes | variables | ({"__init__"} if own_kind else set())


def _of_trainer(
    site: Site, sources: Mapping[str, str], configs: Mapping[str, str], words: Sequence[str]
) -> Loader | None:
    """The loader that Hugging Face's Trainer builds, where the program makes the arguments for one."""
    if site.owned or "/transformers/" not in site.file:
        return None
    trainers = [each for each in trainers_of(sources, configs, words) if each.library == "transformers"]
    return Loader(replace(trainers[0].options, recorded=site.arguments), site) if len(trainers) == 1 else None


def _wraps_another(site: Site, known: Sequence[Site]) -> bool:
    """Whether Accelerate built it, from a loader that was made before, with that one's options."""
    return not site.owned and "/accelerate/" in site.file and any("/accelerate/" not in each.file for each in known)


def _in_text(sources: Mapping[str, str], configs: Mapping[str, str], words: Sequence[str]) -> list[Loader]:
    """Loaders of torch's own class, those that shuffle where some do."""
    found: list[Loader] = []
    for path, text in sources.items():
        source = parse(text) if "DataLoader" in text else None
        for call in source.every(cst.Call) if source is not None else ():
            if call_name(call) != "DataLoader" or source is None:
                continue
            if any(name.startswith("torch.") for name in source.names(call.func)):
                found.append(Loader(CallOptions(path, source, call, sources, configs, words, {}, POSITIONS)))
    return [loader for loader in found if loader.options.value("shuffle") is True] or found
