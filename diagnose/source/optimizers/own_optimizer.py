"""Builds torch's optimizer where the program builds a class of its own that computes the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.optimizers.optimizer_formula import KnownOptimizer
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.tree.arguments import argument, has_star, set_keywords
from diagnose.source.tree.edits import call_name, ensure_import, replace
from diagnose.source.tree.syntax import Source, Splice, only_statement, parse

__all__ = ["replaced_by_torchs"]

_LR_POSITION = 1


def replaced_by_torchs(
    sources: Mapping[str, str], path: str, source: Source, written: cst.ClassDef, known: KnownOptimizer
) -> list[tuple[str, list[Splice]]] | str:
    """The edits by file of every call of the class, and of the class itself where nothing else uses it; or why not."""
    name = written.name.value
    edits: list[tuple[str, list[Splice]]] = []
    mentions = _mentions(source.text, name) - len(re.findall(rf"\b{name}\b", source.code(written)))
    for where, text in sources.items():
        other = source if where == path else parse(text) if name in text else None
        if other is None:
            continue
        for call in other.every(cst.Call):
            if call_name(call) != name or _is_torchs(other, call) or within(other, call, written):
                continue
            found = _call(sources, other, call, known, source.code(written))
            if isinstance(found, str):
                return f"{where}:{other.lines_of(call)[0]} {found}"
            edits.append((where, found))
            mentions -= where == path
    if not edits:
        return "where it is built was not found"
    elsewhere = any(_mentions(text, name) for where, text in sources.items() if where != path)
    if mentions == 0 and not elsewhere:
        edits.append((path, remove_statements(source, [*_imports_for(source, written), written])))
    return edits


def _imports_for(source: Source, written: cst.ClassDef) -> list[cst.BaseSmallStatement]:
    """Imports of one name that nothing but the class uses."""
    found: list[cst.BaseSmallStatement] = []
    code = source.code(written)
    for line in source.module.body:
        small = only_statement(line)
        if not isinstance(small, cst.Import | cst.ImportFrom) or isinstance(small.names, cst.ImportStar):
            continue
        if len(small.names) != 1 or small.names[0].asname is not None:
            continue
        name = source.code(small.names[0].name)
        inside, everywhere = _mentions(code, name), _mentions(source.text, name)
        if name != "torch" and "." not in name and 0 < inside == everywhere - _mentions(source.code(small), name):
            found.append(small)
    return found


def _mentions(text: str, name: str) -> int:
    return len(re.findall(rf"\b{name}\b", text))


def _is_torchs(source: Source, call: cst.Call) -> bool:
    return any(name.startswith("torch.") for name in source.names(call.func))


def _call(
    sources: Mapping[str, str], source: Source, call: cst.Call, known: KnownOptimizer, written: str
) -> list[Splice] | str:
    """The edits that let one call build torch's."""
    target = _target(source, call)
    if has_star(call):
        return "takes its arguments from elsewhere"
    for text in sources.values():
        rest = text.replace(written, "")
        if target and re.search(rf"(?<![\w.]){re.escape(target)}\.(?:load_state_dict|state_dict|state)\b", rest):
            return "keeps its state, in which torch's has other names"
        for name, role in known.roles.items():
            keyword = "betas" if role.startswith("beta") else role
            if name != keyword and re.search(rf"[\"']{name}[\"']", rest):
                return f"is told of `{name}` by name, which torch's calls `{keyword}`"
    torch, splices = ensure_import(source, "torch")
    splices = [*splices, replace(source, call.func, f"{torch}.optim.{known.kind}")]
    needed = dict(known.needed)
    for position, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else known.parameters[position]
        passed = "params" if name == known.parameters[0] else known.roles.get(name)
        if passed is None or passed in {"beta1", "beta2"}:
            return f"passes {name}, which torch's takes otherwise"
        needed.pop(passed, None)
        if arg.keyword is not None and name != passed:
            splices.append(replace(source, arg.keyword, passed))
        elif arg.keyword is None and not (position == 0 or (position == _LR_POSITION and passed == "lr")):
            start = source.wide_span(arg.value)[0]
            splices.append(Splice(start, start, f"{passed}="))
    if argument(call, "fused") is not None:
        return "passes fused already"
    added = {role: repr(value) for role, value in needed.items()} | {"fused": "True"}
    return [*splices, *set_keywords(source, call, added)]


def _target(source: Source, call: cst.Call) -> str | None:
    assign = source.parent(call)
    return source.code(assign.targets[0].target) if isinstance(assign, cst.Assign) else None
