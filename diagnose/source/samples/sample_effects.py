"""The side effects of making a sample, and what it depends on besides its index.

A worker process makes samples in a copy of the program: what it notes there nobody else sees, what it prints comes
early, and the clock, the environment and the number of the process are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.mutations import written_in_place
from diagnose.source.samples.object_identity import (
    changes_object,
    is_alias,
    is_made_anew,
    is_own,
    local_names,
    root_of,
)
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_names import is_read
from diagnose.source.samples.temporary_objects import is_temporary
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import leaves, pairs
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

CHANGES = frozenset(
    {"append", "extend", "insert", "pop", "popleft", "appendleft", "remove", "clear", "update", "add", "discard"}
    | {"setdefault", "popitem", "sort", "reverse", "put", "put_nowait", "rotate", "move_to_end", "subtract", "fill"}
    | {"load_state_dict", "paste", "putpixel", "putalpha", "set", "thumbnail"}
    | {"__setattr__", "__delattr__", "__setitem__", "__delitem__", "__next__"}
)
"""Methods of lists, dictionaries, sets, queues, arrays, images, events and context variables that change them."""
_CHANGE_THE_FIRST = frozenset(
    {"builtins.setattr", "builtins.delattr", "builtins.next", "operator.setitem", "operator.delitem"}
)
"""Functions that change the first of their arguments."""
_CLASSES = frozenset({"builtins.object", "builtins.dict", "builtins.list", "builtins.set"})
_LAST_OF_THESE = frozenset(name.rpartition(".")[2] for name in _CHANGE_THE_FIRST)
_STATEMENTS = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.Del, cst.WithItem, cst.Call)
_TELLS = ("warnings.warn", "logging.", "sys.stdout.", "sys.stderr.", "shutil.", "os.remove", "os.rename", "os.replace")
_SAVES = frozenset(
    {"debug", "info", "warning", "error", "critical", "exception", "writelines", "writerow", "write_text"}
    | {"write_bytes", "write", "to_csv", "savetxt", "savez", "mkdir", "makedirs", "unlink", "commit", "executemany"}
)
_SAVING = frozenset({"torch.save", "numpy.save", "json.dump", "pickle.dump", "torchvision.utils.save_image"})
_CONSOLE = frozenset({"builtins.print", "builtins.input"})
_ENDS = frozenset(
    {"sys.exit", "os._exit", "os.abort", "os.kill", "builtins.SystemExit", "builtins.exit", "builtins.quit"}
)
"""Calls that end the process: a worker that ends takes no exit code along, and the program fails by another error."""
_HERE_AND_NOW = (
    *("time.time", "time.perf_counter", "time.monotonic", "time.process_time", "time.localtime", "time.strftime"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    *("os.getpid", "os.environ", "os.getenv", "os.getppid", "os.times", "threading.", "multiprocessing."),
    *("uuid.uuid1", "uuid.uuid4", "torch.initial_seed", "torch.multiprocessing.", "resource.", "psutil."),
    *("torch.is_grad_enabled", "torch.cuda.", "tracemalloc.", "gc.", "inspect.", "sys._getframe", "tempfile."),
)
_WORKER = "torch.utils.data.get_worker_info"
_OF_TRAINING = frozenset({"param_groups", "get_last_lr"})
"""Attributes of optimizers and schedulers that change from step to step."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One thing that a sample leaves behind or depends on."""

    words: str
    """The words for it in a sentence about the dataset: `keeps …`."""
    path: str
    line: int

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}"


def traces(code: SampleCode) -> Iterator[Trace]:
    """All that are seen in the code that makes samples."""
    streams = any(
        "IterableDataset" in code.sources[path].code(base.value)
        for each, path in code.classes.items()
        for base in each.bases
    )
    elsewhere = _HERE_AND_NOW if streams else (*_HERE_AND_NOW, _WORKER)  # a stream has to ask which part is its own
    for node, path in code.sampling.items():
        source = code.sources[path]
        yield from _kept(code, path, node)
        yield from told(code, path, node)
        yield from _read_elsewhere(source, path, node, elsewhere)


def _kept(code: SampleCode, path: str, node: cst.FunctionDef | cst.Lambda) -> Iterator[Trace]:
    """Yield what outlives a sample and is bound or changed while it is made."""
    source = code.sources[path]
    for target in changed_by(source, node):
        binds = is_read_only(source, target, node) or made_first_in_a_sample(source, target, node)
        if not binds and _outlives(code, path, node, target) and not is_temporary(code, source, target, node):
            words = f"keeps or changes `{source.code(target)}` while it makes a sample"
            yield Trace(words, path, _l(source, target))


def told(code: SampleCode, path: str, node: cst.CSTNode) -> Iterator[Trace]:
    """Yield what a sample asks of the console, how it may end its process, and what it writes."""
    source = code.sources[path]
    for each in source.every(cst.Name, node):
        if source.names(each) & _CONSOLE and is_read(source, each):
            yield Trace(f"calls `{each.value}` while it makes a sample", path, _l(source, each))
    for end in source.walk(node, cst.Name, cst.Attribute):
        if source.names(end) & _ENDS:
            words = f"may end the process by `{source.code(end)}` while it makes a sample"
            yield Trace(words, path, _l(source, end))
    for call in code.calls(path, node):
        if _tells(source, call):
            yield Trace(f"writes by `{source.code(call.func)}` while it makes a sample", path, _l(source, call))


def _read_elsewhere(source: Source, path: str, node: cst.CSTNode, elsewhere: Sequence[str]) -> Iterator[Trace]:
    """Yield what is read that is another in a worker or at another time, by the beginnings of its names."""
    for read in source.walk(node):
        if isinstance(read, cst.Attribute | cst.Name) and not isinstance(source.parent(read), cst.Attribute):
            names = {name for each in _chain(read) for name in source.names(each)}
            of_training = any(
                isinstance(each, cst.Attribute) and each.attr.value in _OF_TRAINING for each in _chain(read)
            )
            if of_training or any(name.startswith(each) for name in names for each in elsewhere):
                words = f"reads `{source.code(read)}`, which is another in a worker or at another time,"
                yield Trace(f"{words} while it makes a sample", path, _l(source, read))


def changed_by(source: Source, below: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what the statements below a node bind or change: attributes, items, variables, what methods change."""
    for node in source.walk(below, *_STATEMENTS):
        targets: list[cst.BaseExpression] = []
        if isinstance(node, cst.Assign):
            targets = [each.target for each in node.targets]
        elif (isinstance(node, cst.AnnAssign) and node.value is not None) or isinstance(
            node, (cst.AugAssign | cst.For | cst.NamedExpr, cst.Del)
        ):
            targets = [node.target]
        elif isinstance(node, cst.WithItem) and node.asname is not None:
            targets = [node.asname.name]
        elif isinstance(node, cst.Call):
            name = call_name(node)
            if isinstance(node.func, cst.Attribute) and name in CHANGES and not _is_module(source, node.func.value):
                unbound = node.args and source.names(node.func.value) & _CLASSES  # `object.__setattr__(x, "size", 8)`
                targets = [node.args[0].value if unbound else node.func.value]
            elif name in _LAST_OF_THESE and node.args and source.names(node.func) & _CHANGE_THE_FIRST:
                targets = [node.args[0].value]
            elif name in {"heappush", "heappop", "shuffle", "insort"} and node.args:
                targets = [node.args[-1 if name == "shuffle" else 0].value]
        for target in targets:
            yield from leaves(target)
    yield from (each for each in written_in_place(source, below) if not isinstance(source.parent(each), cst.AugAssign))


def changed_where_called(source: Source, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what a function changes that an expression stands for: `seen` of `seen.append`, `data` of
    `partial(setattr, data, "strength")`; None where nothing shows that.
    """
    if isinstance(value, cst.Attribute):
        return value.value if value.attr.value in CHANGES else None
    if not isinstance(value, cst.Call) or not source.is_called(value.func, "functools.partial") or not value.args:
        return None
    if len(value.args) > 1 and source.names(value.args[0].value) & _CHANGE_THE_FIRST:
        return value.args[1].value
    return changed_where_called(source, value.args[0].value)


def _is_module(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a name is that of an imported module: `np` of `np.sort(x)`."""
    return (isinstance(node, cst.Name) and node.value in _imported(source)) or any(
        name.startswith(("torch.", "numpy.", "os.", "scipy.", "random.")) for name in source.names(node)
    )


@per_source
def _imported(source: Source) -> frozenset[str]:
    """The names that `import` statements of a file bind to modules."""
    imported = (alias for each in source.every(cst.Import) for alias in each.names)
    known = {(each.asname.name if each.asname is not None else each.name) for each in imported}
    return frozenset(each.value for each in known if isinstance(each, cst.Name))


def is_read_only(source: Source, target: cst.BaseExpression, node: cst.CSTNode) -> bool:
    """Whether a target is a variable of the function's own that is bound, and nothing that is changed."""
    parent = source.parent(target)
    if not isinstance(target, cst.Name) or isinstance(parent, cst.AugAssign | cst.Attribute | cst.Arg):
        return False
    if isinstance(parent, cst.Subscript):
        return False
    return target.value in local_names(source, node)


def _outlives(code: SampleCode, path: str, function: cst.FunctionDef | cst.Lambda, target: cst.BaseExpression) -> bool:
    """Whether what is changed is there still when the next sample is made."""
    source = code.sources[path]
    root = root_of(target)
    if not isinstance(root, cst.Name):
        named = isinstance(root, cst.Call) and call_name(root) in {"globals", "vars", "super", "type", "getattr"}
        return named or is_alias(code, path, function, root)
    own = source.inside(target, cst.ClassDef)
    if is_own(source, root):
        return own is None or (own in code.lasting and getattr(function, "name", root).value != "__init__")
    inside = {*local_names(source, function)}
    for above in source.ancestors(function):
        if isinstance(above, cst.FunctionDef | cst.Lambda) and above in code.sampling:
            inside |= local_names(source, above)
    if root.value not in inside:
        return True
    if isinstance(target, cst.Name) and not changes_object(source, target):
        return False
    if _is_mutable_default(source, function, root.value):
        return True
    if changes_element(source, target) and any(
        is_alias(code, path, function, each) for each in gathered(source, function, root.value)
    ):
        return True
    if is_made_anew(source, function, root, lambda value: is_alias(code, path, function, value)):
        return False
    return is_alias(code, path, function, root)


def gathered(source: Source, function: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what a function puts into a variable's list, tuple or dictionary: `x` of `row = [x]` and `row[0] = x`."""
    for assign in source.every(cst.Assign, function):
        for target, value, _ in pairs(assign):
            if isinstance(target, cst.Subscript) and name == getattr(target.value, "value", None):
                yield value
            elif name == getattr(target, "value", None) and isinstance(value, cst.List | cst.Tuple | cst.Dict):
                yield from (each.value for each in value.elements)


def changes_element(source: Source, target: cst.BaseExpression) -> bool:
    """Whether a statement changes what a container holds, and not which objects: `rows[0] += 1`, `rows[0].sort()`."""
    part: cst.CSTNode | None = target
    if isinstance(target, cst.Name):  # of `rows[0].add_(1)`, whose memory is seen as that of `rows`
        part = source.parent(target)
    if not isinstance(part, cst.Subscript | cst.Attribute):
        return isinstance(part, cst.Call)
    inner = part is target and isinstance(part.value, cst.Subscript | cst.Attribute)
    return inner or isinstance(source.parent(part), cst.AugAssign | cst.Attribute | cst.Arg | cst.Subscript)


def _is_mutable_default(source: Source, function: cst.FunctionDef | cst.Lambda, name: str) -> bool:
    kinds = (cst.List, cst.Dict, cst.Set, cst.Call)
    return any(
        param.name.value == name and isinstance(param.default, kinds)
        for param in source.every(cst.Param, function.params)
    )


def made_first_in_a_sample(source: Source, target: cst.BaseExpression, function: cst.CSTNode) -> bool:
    """Whether `self.file = open(self.path)` opens what no sample opened before, and by nothing of its own sample.

    It stands where the program asks whether the attribute is there, and its value names no variable of the function.
    """
    parent = source.parent(target)
    assign = source.parent(parent) if isinstance(parent, cst.AssignTarget) else None
    if not isinstance(target, cst.Attribute) or not isinstance(assign, cst.Assign):
        return False
    code, name = source.code(target), target.attr.value
    own = local_names(source, function) - {"self"}
    if any(each.value in own and is_read(source, each) for each in source.every(cst.Name, assign.value)):
        return False
    asked = [
        each
        for each in source.every(cst.If, function)
        if code in source.code(each.test) or f'"{name}"' in source.code(each.test)
    ]
    return any(
        within(source, assign, each) or any(isinstance(one, cst.Return) for one in source.walk(each.body))
        for each in asked
    )


def _tells(source: Source, call: cst.Call) -> bool:
    names, name = source.names(call.func), call_name(call)
    if any(each.startswith(_TELLS) or each in _SAVING for each in names):
        return True
    if isinstance(call.func, cst.Attribute) and name in _SAVES:
        return True
    return name == "open" and opens_to_write(call)


def opens_to_write(call: cst.Call) -> bool:
    """Whether a call of `open` names a mode in which the file can be written."""
    mode = argument(call, "mode", 1)
    given = string(mode.value) if mode is not None else None
    return given is not None and bool(set(given) & set("wax+"))


def _chain(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """`a.b.c`, `a.b` and `a`."""
    yield node
    while isinstance(node, cst.Attribute):
        node = node.value
        yield node


def _l(source: Source, node: cst.CSTNode) -> int:
    return source.lines_of(node)[0]
