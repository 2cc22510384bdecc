"""How a file calls `torch.nn.functional`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.tree.edits import ensure_import
from diagnose.source.tree.syntax import Source, Splice


def functional(source: Source) -> tuple[str, list[Splice]]:
    """The name by which a file knows `torch.nn.functional`, and the import to be added first, if any."""
    known = dict(_imported(source))
    for module, suffix in (("torch.nn.functional", ""), ("torch.nn", ".functional")):
        if module in known:
            return known[module] + suffix, []
    torch, splices = ensure_import(source, "torch")
    return f"{torch}.nn.functional", splices


def _imported(source: Source) -> Iterator[tuple[str, str]]:
    """Modules that the top of a file gives a name of one word, with that name."""
    for statement in source.module.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Import):
                for alias in small.names:
                    if alias.asname is not None:
                        yield source.code(alias.name), source.code(alias.asname.name)
            elif isinstance(small, cst.ImportFrom) and small.module is not None:
                for alias in () if isinstance(small.names, cst.ImportStar) else small.names:
                    name = source.code(alias.name)
                    known = source.code(alias.asname.name) if alias.asname is not None else name
                    yield f"{source.code(small.module)}.{name}", known


def operand_code(source: Source, node: cst.BaseExpression) -> str:
    """The code of an expression, for a method to be called on."""
    code = source.code(node)
    plain = isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or code.startswith("(")
    return code if plain else f"({code})"
