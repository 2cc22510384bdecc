"""The objects of a dataset that worker processes must not share: open files, archives, connections, locks, iterators.

A forked worker has the same open file as its parent and its siblings, with one position for all of them: each reads
where another left off. What a value is follows from the call that makes it, and what is not known to be plain data is
taken for a handle where it comes from a library that this module does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace
from diagnose.source.samples.sample_names import is_read
from diagnose.source.tree.attributes import is_of_self
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_HANDLES = (
    *("builtins.open", "builtins.iter", "builtins.map", "builtins.filter", "builtins.zip", "builtins.enumerate"),
    *("builtins.reversed", "io.open", "io.FileIO", "io.BufferedReader", "io.TextIOWrapper", "os.open", "os.fdopen"),
    *("os.scandir", "os.walk", "os.pipe", "os.popen", "gzip.", "bz2.", "lzma.", "codecs.open", "csv.reader"),
    *("csv.DictReader", "csv.writer", "zipfile.", "tarfile.", "h5py.", "sqlite3.", "lmdb.", "socket.", "subprocess."),
    *("mmap.", "urllib.", "http.", "requests.", "threading.", "multiprocessing.", "queue.", "itertools.", "shelve."),
    *(
        "dbm.",
        "asyncio.",
        "concurrent.",
        "select.",
        "selectors.",
        "ssl.",
        "ftplib.",
        "tempfile.",
        "logging.FileHandler",
    ),
    *("torch.multiprocessing.", "torch.distributed.", "PIL.Image.open", "linecache.", "fileinput.", "memoryview"),
    *("torch.utils.data.DataLoader", "torch.utils.data._utils", "torchvision.io.VideoReader", "pandas.HDFStore"),
    *("pandas.ExcelFile", "builtins.memoryview", "weakref.", "contextlib.", "ctypes."),
    *("zlib.compressobj", "zlib.decompressobj"),
)
_PLAIN = frozenset(
    {
        "builtins",
        "torch",
        "torchvision",
        "torchaudio",
        "torchtext",
        "numpy",
        "pandas",
        "PIL",
        "transformers",
        "datasets",
    }
    | {"tokenizers", "sentencepiece", "tiktoken", "glob", "os", "pathlib", "json", "csv", "pickle", "yaml", "random"}
    | {"math", "collections", "functools", "re", "sklearn", "scipy", "albumentations", "string", "copy", "datetime"}
    | {"dataclasses", "operator", "typing", "time", "hashlib", "logging", "argparse", "types", "enum", "io", "struct"}
    | {"decimal", "fractions", "statistics", "array", "bisect", "heapq", "textwrap", "unicodedata", "sys", "einops"}
    | {"skimage", "cv2", "imageio", "librosa", "soundfile", "nltk", "omegaconf", "hydra", "timm", "kornia", "abc"}
    | {"zlib", "binascii", "calendar", "zoneinfo", "colorsys", "cmath", "numbers", "difflib", "pprint", "shlex"}
    | {"platform", "locale", "configparser", "tomllib", "plistlib", "marshal", "ipaddress", "keyword", "graphlib"}
    | {"polars", "pyarrow", "base64", "html", "uuid", "warnings", "fnmatch", "networkx", "torch_geometric", "ast"}
    | {"pycocotools", "xml", "gensim", "spacy", "jieba", "unidecode", "inflect", "ogb", "shapely"}
)
"""Libraries whose functions return plain data, or transforms of it, but for those that are listed as handles."""
_OPENS = frozenset({"VideoCapture", "VideoReader", "ParquetFile", "memory_map", "OSFile", "SoundFile", "get_reader"})
_READS = frozenset(
    {"read", "readlines", "readline", "decode", "splitlines", "split", "strip", "fetchall", "fetchone", "namelist"}
    | {"getnames", "getmembers", "tolist", "convert", "copy", "clone", "load", "json", "text", "numpy", "infolist"}
    | {"read_text", "read_bytes", "rotate", "resize", "astype", "keys", "item", "count", "stat", "crop", "to_pandas"}
)
"""Methods of a handle that return what was read."""
_DEEPEST = 6


def held_handles(code: SampleCode) -> Iterator[Trace]:
    """Attributes and globals that samples read, whose value is a handle or may be one."""
    read = {
        each.attr.value
        for node, path in code.sampling.items()
        for each in code.sources[path].every(cst.Attribute, node)
    }
    by_name = _names_looked_up(code)
    for owner, path in code.lasting.items():
        source = code.sources[path]
        for assign in source.walk(owner, cst.Assign, cst.AnnAssign):
            if not isinstance(assign, cst.Assign | cst.AnnAssign) or assign.value is None:
                continue
            if source.inside(assign, cst.FunctionDef) in code.sampling:
                continue  # opened in the worker: what is kept there is judged as a trace
            targets = [assign.target] if isinstance(assign, cst.AnnAssign) else [each.target for each in assign.targets]
            for target in targets:
                its = target.attr.value if isinstance(target, cst.Attribute) else getattr(target, "value", "")
                if its in read:
                    yield from _judged(code, path, target, assign.value, its in by_name)
    for node, path in code.sampling.items():
        source = code.sources[path]
        read_names = [each for each in source.every(cst.Name, node) if is_read(source, each)]
        for name in {each.value: each for each in read_names if not _is_compared(source, each)}.values():
            for file, value in code.values(path, name):
                if code.sources[file].inside(value, cst.FunctionDef) not in code.sampling:
                    yield from _judged(code, file, name, value, False)


def _is_compared(source: Source, name: cst.Name) -> bool:
    """Whether only an attribute of a name is compared: `accelerator.mixed_precision == "fp8"`."""
    attribute = source.parent(name)
    above = source.parent(attribute) if attribute is not None else None
    return isinstance(attribute, cst.Attribute) and isinstance(above, cst.Comparison | cst.ComparisonTarget)


def _judged(
    code: SampleCode, path: str, target: cst.BaseExpression, value: cst.BaseExpression, named: bool
) -> Iterator[Trace]:
    made = _handle(code, path, value, _DEEPEST, named)
    if made is not None:
        name = target.attr.value if isinstance(target, cst.Attribute) else getattr(target, "value", "a value")
        at = code.sources[path].lines_of(value)[0]
        yield Trace(f"holds `{name}`, made by `{made}`, which processes may not share", path, at)


def _names_looked_up(code: SampleCode) -> set[str]:
    """Attributes that samples take a named part of: `self.arrays["x"]`, as of an archive that NumPy opened."""
    found: set[str] = set()
    for node, path in code.sampling.items():
        for each in code.sources[path].every(cst.Subscript, node):
            inner = each.slice[0].slice
            if (
                isinstance(each.value, cst.Attribute)
                and isinstance(inner, cst.Index)
                and string(inner.value) is not None
            ):
                found.add(each.value.attr.value)
    return found


def _handle(code: SampleCode, path: str, value: cst.CSTNode, depth: int, named: bool) -> str | None:
    """The code that makes a handle of an expression; None where it is plain data as far as that is seen."""
    source = code.sources[path]
    if depth == 0:
        return None
    if isinstance(value, cst.GeneratorExp):
        return source.code(value)
    if isinstance(value, cst.IfExp):
        return _handle(code, path, value.body, depth - 1, named) or _handle(code, path, value.orelse, depth - 1, named)
    if isinstance(value, cst.BooleanOperation):
        return _handle(code, path, value.left, depth - 1, named) or _handle(code, path, value.right, depth - 1, named)
    if isinstance(value, cst.List | cst.Tuple | cst.Set):
        return next(filter(None, (_handle(code, path, each.value, depth - 1, named) for each in value.elements)), None)
    if isinstance(value, cst.Dict):
        return next(filter(None, (_handle(code, path, each.value, depth - 1, named) for each in value.elements)), None)
    if isinstance(value, cst.ListComp):
        return _handle(code, path, value.elt, depth - 1, named)
    if isinstance(value, cst.DictComp):
        return _handle(code, path, value.value, depth - 1, named)
    if isinstance(value, cst.Subscript):
        of = value.value
        whole = any(_reads_whole(each.slice) for each in value.slice)
        of_archive = isinstance(of, cst.Call) and source.is_called(of.func, "numpy.load")
        return None if whole or of_archive else _handle(code, path, of, depth - 1, named)
    if isinstance(value, cst.Name):
        return _of_name(code, path, value, depth, named)
    if isinstance(value, cst.Attribute) and is_of_self(value):
        given = _own_values(source, value)
        return next(filter(None, (_handle(code, path, each, depth - 1, named) for each in given)), None)
    if isinstance(value, cst.Call):
        return _of_call(code, path, value, depth, named)
    return None


def _reads_whole(index: cst.BaseSlice) -> bool:
    """Whether an index copies what it picks into memory: `file["x"][:]`, `file["x"][...]`, `file["x"][()]`."""
    given = index.value if isinstance(index, cst.Index) else None
    return given is None or isinstance(given, cst.Ellipsis) or (isinstance(given, cst.Tuple) and not given.elements)


def _own_values(source: Source, attribute: cst.Attribute) -> Iterator[cst.BaseExpression]:
    """The expressions that the class around assigns to an attribute of its own."""
    named = source.code(attribute)
    for assign in source.every(cst.Assign, source.inside(attribute, cst.ClassDef)):
        if any(source.code(each.target) == named for each in assign.targets):
            yield assign.value


def _of_name(code: SampleCode, path: str, name: cst.Name, depth: int, named: bool) -> str | None:
    if code.without_handle.get((name, named), 0) >= depth:
        return None
    code.without_handle[name, named] = depth
    source = code.sources[path]
    for item in source.every(cst.WithItem):
        known = item.asname.name if item.asname is not None else None
        named_so = isinstance(known, cst.Name) and known.value == name.value
        made = _handle(code, path, item.item, depth - 1, named) if named_so else None
        if made is not None:
            return made
    given = code.values(path, name)
    return next(filter(None, (_handle(code, file, each, depth - 1, named) for file, each in given)), None)


def _of_call(code: SampleCode, path: str, call: cst.Call, depth: int, named: bool) -> str | None:
    source, name = code.sources[path], call_name(call)
    names = source.names(call.func)
    if isinstance(call.func, cst.Attribute) and not any(
        "." in each for each in names if _is_imported(source, call.func)
    ):
        inner = call.func.value
        if name == "open":
            return source.code(call.func)
        if name in _READS or name.endswith("all"):
            return None
        made = _handle(code, path, inner, depth - 1, named)
        gathers = name in {"map", "starmap"} and made is not None and made.endswith("Pool")  # a list of results
        return None if gathers else made
    found = [(file, each) for file, each in code.defined.named(name) if not _is_method(code.sources[file], each)]
    if found:
        for file, each in found:
            if isinstance(each, cst.FunctionDef):
                made = _of_function(code, file, each, depth, named)
                if made is not None:
                    return made
        return None
    if name in _OPENS or any(each.startswith(_HANDLES) for each in names):
        return source.code(call.func)
    if "numpy.load" in names and (named or any(".npz" in source.code(arg.value) for arg in call.args)):
        return source.code(call.func)
    if any(each.partition(".")[0] not in _PLAIN for each in names if _is_imported(source, call.func)):
        return source.code(call.func)
    if "functools.partial" in names:
        return next(filter(None, (_handle(code, path, arg.value, depth - 1, named) for arg in call.args)), None)
    return None


def _of_function(code: SampleCode, path: str, function: cst.FunctionDef, depth: int, named: bool) -> str | None:
    source = code.sources[path]
    if any(source.inside(each, cst.FunctionDef) is function for each in source.every(cst.Yield, function)):
        return f"{function.name.value}()"
    for each in source.every(cst.Return, function):
        if each.value is not None and source.inside(each, cst.FunctionDef) is function:
            made = _handle(code, path, each.value, depth - 1, named)
            if made is not None:
                return made
    return None


def _is_imported(source: Source, function: cst.BaseExpression) -> bool:
    """Whether a callee's name begins with an imported one, or is a builtin's."""
    root = function
    while isinstance(root, cst.Attribute):
        root = root.value
    if not isinstance(root, cst.Name):
        return False
    for each in source.every(cst.ImportAlias):
        known: cst.BaseExpression = each.asname.name if each.asname is not None else each.name
        while isinstance(known, cst.Attribute):
            known = known.value
        if isinstance(known, cst.Name) and known.value == root.value:
            return True
    return False


def _is_method(source: Source, found: cst.ClassDef | cst.FunctionDef) -> bool:
    return isinstance(source.parent(source.parent(found) or found), cst.ClassDef)
