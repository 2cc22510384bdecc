"""Other loaders that get workers by an edit made for one: from a constant, an option, a dictionary that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from diagnose.source.batches.loader import Loader
from diagnose.source.settings.setting import Setting
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source, Splice

_Edits = Sequence[tuple[str, Sequence[Splice]]]
"""Files, each with what is put into it."""


def loaders_reached(loader: Loader, edits: _Edits, make: Callable[[_Edits], Mapping[str, str]]) -> Iterator[Loader]:
    """The program's other loaders that have another number of workers with edits made for one; `make` makes the files.

    A word of the command line reaches all that take their number from there. An edit of the call itself reaches none.
    """
    options = loader.options
    begin, end = options.source.span(options.node)
    if all(
        path == options.path and all(begin <= each.start and each.end <= end for each in splices)
        for path, splices in edits
    ):
        return
    edited = make(edits)
    setting = options.setting("num_workers")
    texts = {**options.sources, **{path: text for path, text in edited.items() if path in options.sources}}
    changed = parse_all(texts)
    for path, source in parse_all(options.sources).items():
        after = changed.get(path, source)
        for call, later in zip(source.calls_named("DataLoader"), after.calls_named("DataLoader"), strict=False):
            if call is options.node:
                continue
            other = _at(loader, options.sources, path, source, call)
            its = other.options.setting("num_workers")
            told = its is not None and its.form == "command" and its.path in edited and _same(its, setting)
            if told or other.workers != _at(loader, texts, path, after, later).workers:
                yield other
        yield from _of_partials(loader, path, source, texts, after)


def _of_partials(
    loader: Loader, path: str, source: Source, texts: Mapping[str, str], after: Source
) -> Iterator[Loader]:
    """The loaders that calls of a `partial(DataLoader, …)` build, where it has another number of workers afterwards."""
    before = loader.options.sources
    for made, later in zip(source.calls_named("partial"), after.calls_named("partial"), strict=False):
        if not made.args or source.code(made.args[0].value).rpartition(".")[2] != "DataLoader":
            continue
        if _at(loader, before, path, source, made).workers == _at(loader, texts, path, after, later).workers:
            continue
        assign = source.parent(made)
        targets = [source.code(each.target) for each in assign.targets] if isinstance(assign, cst.Assign) else []
        names = {target.rpartition(".")[2] for target in targets}
        for at, other in parse_all(before).items():
            yield from (_at(loader, before, at, other, call) for call in other.calls_named(*names))


def _at(loader: Loader, texts: Mapping[str, str], path: str, source: Source, call: cst.Call) -> Loader:
    """The loader that a call builds."""
    return Loader(replace(loader.options, sources=texts, path=path, source=source, node=call, recorded={}))


def _same(one: Setting, other: Setting | None) -> bool:
    return other is not None and (one.path, one.splice_to) == (other.path, other.splice_to)
