"""Whether code runs in a daemonic process, which may not start processes of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.exception_handlers import ways_to
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_OF_POOLS = frozenset(
    {"apply", "apply_async", "map", "map_async", "imap", "imap_unordered", "starmap", "starmap_async", "Pool"}
)


def daemon_that_runs(sources: Mapping[str, Source], path: str, node: cst.CSTNode) -> str | None:
    """The line that hands the node's function, or one that leads to it, to a daemonic process.

    Those are the processes of a `multiprocessing.Pool`, and each `Process` with `daemon=True`. The processes of a
    `ProcessPoolExecutor` are not.
    """
    if not any(source.mentions("Pool", "Process") for source in sources.values()):
        return None
    for at, source, place in ways_to(sources, path, node):
        started = next((call for call in _handed_to(source, place) if _starts_daemon(source, call)), None)
        if started is not None:
            return f"{at}:{source.lines_of(started)[0]}"
    return None


def _handed_to(source: Source, place: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls that get a mention of a function, or a variable that was made of it."""
    for above in source.ancestors(place):
        if isinstance(above, cst.Call) and place is not above.func:
            yield above
        if isinstance(above, cst.Assign) and isinstance(above.targets[0].target, cst.Name):
            name = above.targets[0].target.value
            arguments = (each for each in source.named(name) if isinstance(source.parent(each), cst.Arg))
            yield from (call for each in arguments if isinstance(call := source.inside(each, cst.Call), cst.Call))
        if isinstance(above, cst.BaseStatement):
            return


def _starts_daemon(source: Source, call: cst.Call) -> bool:
    name = call_name(call)
    if name == "Process":
        given = argument(call, "daemon")
        if given is not None:
            return source.code(given.value) != "False"
        later = (assign for assign in source.every(cst.Assign) if source.code(assign.value) != "False")
        return any(source.code(assign.targets[0].target).endswith(".daemon") for assign in later)
    if name not in _OF_POOLS:
        return False
    pools = (made for made in source.calls_named("Pool"))
    return any(not any(".dummy" in each for each in source.names(made.func)) for made in pools)
