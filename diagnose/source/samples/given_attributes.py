"""Follows what a program gives attributes that samples read: `data.transform = Crop(8)` helps to make samples."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.samples.object_identity import is_own
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_SET_OF_OTHERS = re.compile(r"(?<!\bself)(?<!\bcls)\.\s*(\w+)\s*=(?!=)")
"""Attributes that a text sets, but for those of `self`; it may be other text than code."""


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
            if path not in files and read.isdisjoint(_set_of_others(source)):
                continue
            for assign in source.every(cst.Assign):
                targets = (target.target for target in assign.targets)
                kept = any(
                    isinstance(one, cst.Attribute) and one.attr.value in read and not _is_of_others(code, source, one)
                    for one in targets
                )
                if kept and _is_made_here(code, path, assign.value):
                    code.builds(path, assign.value)


@per_source
def _set_of_others(source: Source) -> frozenset[str]:
    return frozenset(_SET_OF_OTHERS.findall(source.text))


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
