"""Follows what a program gives attributes that samples read: `data.transform = Crop(8)` helps to make samples."""

from __future__ import annotations

import ast

import libcst as cst

from diagnose.source.samples.object_identity import is_own
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source


def follow_given(code: SampleCode) -> None:
    """Follow what the program gives attributes that samples read, `data.transform = Crop(8)`, until nothing is new."""
    known = -1
    while known != len(code.sampling) + len(code.classes):
        known = len(code.sampling) + len(code.classes)
        read = {
            each.attr.value
            for node, path in code.sampling.items()
            for each in code.sources[path].every(cst.Attribute, node)
        }
        files = set(code.classes.values())
        for path, source in code.sources.items():
            may_be_read = not read.isdisjoint(assigned_attributes(source, path in files))
            for assign in source.every(cst.Assign) if may_be_read else ():
                targets = (target.target for target in assign.targets)
                kept = any(
                    isinstance(one, cst.Attribute) and one.attr.value in read and not _is_of_others(code, source, one)
                    for one in targets
                )
                if kept and not code.is_passed_all(path, assign.value) and _is_made_here(code, path, assign.value):
                    code.builds(path, assign.value)


@per_source
def assigned_attributes(source: Source, own: bool) -> frozenset[str]:
    """The attributes that assignments set, those of `self` where it is asked for; the file is not parsed for them."""
    targets = (target for each in source.outline.every(ast.Assign) for target in each.targets)
    return frozenset(
        each.attr for each in targets if isinstance(each, ast.Attribute) and (own or not _is_self(each.value))
    )


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _is_of_others(code: SampleCode, source: Source, target: cst.Attribute) -> bool:
    """Whether a target is `self.name` in a class of which no instance is reached from a sample."""
    owner = source.inside(target, cst.ClassDef) if is_own(source, target.value) else None
    return owner is not None and owner not in code.classes


def _is_made_here(code: SampleCode, path: str, node: cst.BaseExpression) -> bool:
    """Whether a value is a function of the program's own or an object of a class of its own; a number is a copy."""
    files: dict[cst.BaseExpression, str] = {node: path}
    following = [node]
    for each in following:  # and what is found on the way; a function that calls itself passes a parameter on to it
        if isinstance(each, cst.Lambda) or (isinstance(each, cst.Call) and call_name(each) in code.defined):
            return True
        if isinstance(each, cst.Name):
            if each.value in code.defined:
                return True
            given = {value: file for file, value in code.values(files[each], each) if value not in files}
            files |= given
            following += given
    return False
