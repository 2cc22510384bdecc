"""A function in the user's file that says which results stay while a block is computed again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diagnose.source.tree.edits import ensure_import, free_name, insert_after, insert_before, top_of_program
from diagnose.source.tree.syntax import Source, Splice

_CONTEXTS, _NOTHING = "create_selective_checkpoint_contexts", "noop_context_fn"


@dataclass(frozen=True)
class Keeping:
    """Operators whose results stay while the rest of a block is computed again."""

    operators: Sequence[str]
    """The operators' names in torch without `torch.ops`: `aten.addmm.default`."""
    turns: Collection[int]
    """The chosen turns in which they do; in the others all is computed again."""

    def context(self, source: Source, contexts: str) -> tuple[str, list[Splice]]:
        """The name of that function, and the edits that put it after the imports.

        `contexts` is what the file calls `create_selective_checkpoint_contexts`.
        """
        name, step = free_name(source, "keep_results"), source.indentation
        torch, splices = ensure_import(source, "torch")
        listed = [f"{step * 2}{torch}.ops.{operator}," for operator in self.operators]
        lines = [
            f"def {name}():",
            f'{step}"""What stays of a block while the rest of it is computed again in the backward pass."""',
            *(f"{step}operators = [", *listed, f"{step}]", f"{step}return {contexts}(operators)"),
        ]
        anchor = top_of_program(source)
        if anchor is None:
            return name, [*splices, insert_before(source, source.module.body[0], [*lines, "", ""])]
        return name, [*splices, insert_after(source, anchor, ["", "", *lines])]


def imports_needed(keeping: Keeping | None, partly: bool) -> list[str]:
    """Return the names that the file must import from `torch.utils.checkpoint`; `partly`: some blocks keep nothing."""
    if keeping is None:
        return []
    return [_CONTEXTS, _NOTHING] if partly else [_CONTEXTS]
