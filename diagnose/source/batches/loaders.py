"""The data loaders of a program: those that a run recorded, and those that the text builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from diagnose.model import Place, Site
from diagnose.source.batches.loader import Loader
from diagnose.source.dataflow.flow import within
from diagnose.source.settings.options import CallOptions
from diagnose.source.settings.trainers import trainers_of
from diagnose.source.tree.edits import calls_at, parse
from diagnose.source.tree.memo import files_with, per_source
from diagnose.source.tree.syntax import Source

POSITIONS = {"dataset": 0, "batch_size": 1, "shuffle": 2, "num_workers": 5, "collate_fn": 6, "pin_memory": 7}
_DRAWS = "draws"
"""The kind of site at which a run saw random numbers go into samples: `collect/inside/probes/rng_use.py` records it."""


@dataclass(frozen=True)
class LoadersFound:
    """Loaders to work on, and sites that lie in code that is not the user's."""

    loaders: tuple[Loader, ...]
    foreign: tuple[Site, ...] = ()
    drew: tuple[Site, ...] = ()
    """The places where the run saw samples draw random numbers, of whatever loader."""


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


def _names_of(source: Source, site: Site) -> frozenset[str]:
    """Return what the call of a recorded loader may call: torch's class, the program's own kind of it, a variable for
    one.

    In the constructor of the program's own kind also that of the class above it.
    """
    own = site.arguments.get("name")
    classes = frozenset({"DataLoader", *([own] if isinstance(own, str) else [])})
    variables = _variables_for(source, classes)
    own_kind = (site.function or "").endswith(".__init__") and "super(" in source.text
    return classes | variables | ({"__init__"} if own_kind else set())


@per_source
def _variables_for(source: Source, classes: frozenset[str]) -> frozenset[str]:
    """The variables that stand for one of these classes: `Loader = DataLoader`."""
    return frozenset(
        target.target.value
        for assign in source.every(cst.Assign)
        if not any(source.every(cst.Call, assign.value))
        and any(name.value in classes for name in source.every(cst.Name, assign.value))
        for target in assign.targets
        if isinstance(target.target, cst.Name)
    )


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
    for path, source in files_with(sources, "DataLoader"):
        for call in source.calls_named("DataLoader"):
            if any(name.startswith("torch.") for name in source.names(call.func)):
                found.append(Loader(CallOptions(path, source, call, sources, configs, words, {}, POSITIONS)))
    return [loader for loader in found if loader.options.value("shuffle") is True] or found
