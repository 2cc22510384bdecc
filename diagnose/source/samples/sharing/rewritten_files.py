"""Files that samples are read from and that the program writes as well.

A path is compared by its words: its folders and file names as far as the source spells them, and the attributes and
variables of the module that stand for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.bindings import bound_to, values_of
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace, opens_to_write
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_READS = frozenset(
    {"open", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "imread", "read_image", "read_file", "read_text"}
    | {"read_bytes", "read_csv", "read_parquet", "default_loader", "getline", "connect", "File"}
)
_WRITTEN = {
    **dict.fromkeys(("save", "open", "savez", "savez_compressed", "savetxt", "to_csv", "imwrite", "tofile"), 0),
    **dict.fromkeys(("save_image", "replace", "rename", "copy", "copyfile", "move"), 1),
    **dict.fromkeys(("write_text", "write_bytes"), None),
}
"""Calls that write a file: the place of the argument that names it; None where it is what they are called on."""
_SEPARATORS = frozenset({"sep", "altsep", "extsep", "curdir", "pardir"})
"""Attributes of `os` that belong to every path."""
_DEPTH = 3
_EXTENSION = re.compile(r"\.\w*$")


def rewritten_files(code: SampleCode) -> Iterator[tuple[str, cst.Call, Trace]]:
    """Yield the calls outside of the sample code that may write what samples are read from, each with its file."""
    read = {
        word
        for node, path in code.sampling.items()
        for call in code.calls(path, node)
        if call_name(call) in _READS
        for word in (*_words(code.sources[path], call), *_given(code, path, call))
    }
    for path, source in code.sources.items() if read else ():
        for call in source.calls_named(*_WRITTEN):
            if any(each in code.sampling or each in code.building for each in source.ancestors(call)):
                continue
            written = _written(source, call)
            if written is not None and not read.isdisjoint(_words(source, written)):
                words = f"reads files that the program writes (`{source.code(call)}`)"
                yield path, call, Trace(words, path, source.lines_of(call)[0])


def _given(code: SampleCode, path: str, call: cst.Call) -> Iterator[str]:
    """Yield the words of what the program passes to the constructor for the attributes that a path begins with."""
    source = code.sources[path]
    for part in source.every(cst.Attribute, call):
        for name in values_of(source, part):
            for file, value in code.values(path, name) if isinstance(name, cst.Name) else ():
                yield from _words(code.sources[file], value)


def _written(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return the path that a call writes; None where it writes none."""
    name = call_name(call)
    place = 1 if "torch.save" in source.names(call.func) else _WRITTEN[name]
    if place is None:
        return call.func
    if place >= len(call.args) or (name == "open" and not opens_to_write(call)):
        return None
    return call.args[place].value


def _words(source: Source, node: cst.CSTNode, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the words that tell one path from another."""
    for part in source.walk(node, cst.SimpleString, cst.FormattedStringText, cst.Attribute, cst.Name):
        if isinstance(part, cst.SimpleString | cst.FormattedStringText):
            text = part.raw_value if isinstance(part, cst.SimpleString) else part.value
            pieces = (_EXTENSION.sub("", piece) for piece in re.split(r"[/\\]", text))
            yield from (piece for piece in pieces if re.search(r"[^\W\d]{2}", piece))
        elif isinstance(part, cst.Attribute):
            if not _is_owner_or_callee(source, part) and part.attr.value not in _SEPARATORS:
                yield part.attr.value
        elif isinstance(part, cst.Name) and not _is_owner_or_callee(source, part):
            values = [each for each in bound_to(source, part) if isinstance(each, cst.BaseExpression)]
            known = {word for each in values for word in _words(source, each, depth - 1)} if depth else set()
            of_module = values and source.inside(values[0], cst.FunctionDef) is None
            yield from known or ({part.value} if of_module else ())


def _is_owner_or_callee(source: Source, node: cst.CSTNode) -> bool:
    """Whether a name or attribute is the beginning of a longer one, or what a call calls."""
    above = source.parent(node)
    return isinstance(above, cst.Attribute) or (isinstance(above, cst.Call) and above.func is node)
