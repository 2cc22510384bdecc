"""Other loaders that take their number of workers from the same place: a constant, an option, a field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.source.batches.loader import Loader
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Splice


def loaders_reached(loader: Loader, edits: Sequence[tuple[str, Sequence[Splice]]]) -> Iterator[Loader]:
    """The program's other loaders whose number of workers some edits change, made for one of them."""
    options = loader.options
    setting = options.setting("num_workers")
    if setting is None:
        return
    places = {(path, (splice.start, splice.end)) for path, splices in edits for splice in splices}
    if (setting.path, setting.splice_to) not in places:
        return
    for path, source in parse_all(options.sources).items():
        for call in source.calls_named("DataLoader"):
            if call is options.node:
                continue
            other = Loader(replace(options, path=path, source=source, node=call, recorded={}))
            its = other.options.setting("num_workers")
            if its is not None and (its.path, its.splice_to) == (setting.path, setting.splice_to):
                yield other
