"""Where the program shards its model with `fully_shard`: each call, the loop over blocks, the model around them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.iteration import numbered
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import Source


@dataclass(frozen=True)
class Sharded:
    """One call of `fully_shard`."""

    path: str
    source: Source = field(repr=False)
    call: cst.Call = field(repr=False)
    module: str
    """The code of what is sharded."""
    loop: cst.For | None = field(repr=False)
    """The loop whose variable that is; None where it is no loop's."""
    blocks: str | None
    """The code of what the loop goes through, without `enumerate`."""
    whole: bool
    """Whether it is the model around the others: what is left over is kept after the forward pass by itself."""

    @property
    def line(self) -> str:
        """The sharded module as a line of text, for messages."""
        return f"{self.path}:{self.source.lines_of(self.call)[0]}"

    @property
    def is_conditional(self) -> bool:
        """Whether the program shards only sometimes."""
        branches = [above for above in self.source.ancestors(self.call) if isinstance(above, cst.If)]
        return any("__name__" not in self.source.code(branch.test) for branch in branches)

    @property
    def skips_some(self) -> bool:
        """Whether the loop leaves some of what it goes through whole."""
        loop = self.loop
        if loop is None:
            return False
        branches = (each for each in self.source.ancestors(self.call) if isinstance(each, cst.If | cst.IfExp | cst.Try))
        leaves = any(isinstance(each, cst.Continue | cst.Break) for each in self.source.walk(loop.body))
        return leaves or any(within(self.source, each, loop) for each in branches)


def sharded_blocks(sources: Mapping[str, str]) -> tuple[Sharded, ...]:
    """Every call of the sources, in the order of the text."""
    found: list[Sharded] = []
    for path, source in files_with(sources, "fully_shard"):
        calls = [call for call in source.every(cst.Call) if call_name(call) == "fully_shard" and call.args]
        modules = [source.code(call.args[0].value) for call in calls]
        loops = [_loop(source, call, module) for call, module in zip(calls, modules, strict=True)]
        # What a loop goes through is never the block itself, even where it is called as the model is.
        over = [f"{source.code(loop.iter)}.*" for loop in loops if loop is not None]
        for call, module, loop in zip(calls, modules, loops, strict=True):
            whole = loop is None and any(_holds(module, other) for other in (*modules, *over))
            blocks = _blocks(source, loop) if loop is not None else None
            found.append(Sharded(path, source, call, module, loop, blocks, whole))
    return tuple(found)


def _holds(module: str, other: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(module)}[.)]", other) is not None


def _loop(source: Source, call: cst.Call, module: str) -> cst.For | None:
    for above in source.ancestors(call):
        if isinstance(above, cst.For) and any(name.value == module for name in source.every(cst.Name, above.target)):
            return above
        if isinstance(above, cst.FunctionDef):
            return None
    return None


def _blocks(source: Source, loop: cst.For) -> str | None:
    """None where turns are over more than the blocks themselves."""
    pair = numbered(loop)
    over = pair.values if pair is not None and pair.from_zero else loop.iter
    if over is loop.iter and not isinstance(loop.target, cst.Name):
        return None
    if isinstance(over, cst.Call) and call_name(over) not in {"values", "children", "list"}:
        return None
    return source.code(over)
