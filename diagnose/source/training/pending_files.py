"""Whether a program may notice that a checkpoint is not written yet: what it does with files meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, passed_to
from diagnose.source.dataflow.exception_handlers import ERRORS_OF_FILES, Place, who_catches
from diagnose.source.dataflow.flow import Loop
from diagnose.source.dataflow.reachable_code import ReachableCode, runs_after
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import member
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

Save = tuple[str, Source, cst.Call]
"""A file of the program, its source, and the call of `torch.save` in it."""


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_PURE = _names(
    "join basename dirname splitext abspath normpath expanduser expandvars relpath split commonpath commonprefix isabs "
    "getenv getpid cpu_count makedirs mkdir fspath uname getcwd isdir get urandom getloadavg sched_getaffinity sep "
    "get_terminal_size disk_usage"
)
"""Functions of `os`, `os.path` and `shutil` that no file of the program's shows in, or that make its folders."""
_MODULES = _names(
    "os shutil glob subprocess tarfile zipfile tempfile fsspec s3fs gcsfs boto3 botocore requests httpx urllib "
    "paramiko ftplib smtplib socket huggingface_hub threading multiprocessing concurrent asyncio pexpect sh "
    "fabric dvc git ray joblib pickle dill cloudpickle safetensors"
)
"""Modules that act on files, start processes or threads, or send files away."""
_PATTERN = re.compile(r"[*?\]]")
_ENDING = re.compile(r"\.[A-Za-z]\w*$")
"""The suffix of a file's name; a folder may be called `runs/lr0.1`."""
_FETCHES = _names("get head urlopen")
"""Functions of these modules whose answer is read from the network."""
_METHODS = _names(
    "exists is_file stat lstat unlink rename glob rglob iterdir read_bytes touch symlink_to hardlink_to samefile "
    "upload upload_file upload_fileobj upload_folder upload_blob upload_from_filename put_object put_file fput_object "
    "log_artifact log_artifacts log_model save_artifact add_file add_dir push_to_hub upload_artifact system popen "
    "load load_file safe_open load_from_checkpoint load_checkpoint load_state from_pretrained restore read_pickle "
    "load_state_dict_from_url resume Popen check_call check_output submit apply_async start_processes spawn"
)
"""Methods that look at files, send them away, or start what may."""
_OF_ANY_FILE = _names(
    "listdir scandir walk fwalk iterdir rmtree copytree make_archive rmdir removedirs chdir system popen startfile "
    "posix_spawn posix_spawnp spawnl spawnle spawnlp spawnv spawnve spawnvp"
)
"""Functions that may meet any file, whatever it is called: those of whole folders, and those that start a program."""
_NO_CHECKPOINTS = _names("PIL torchvision torchaudio cv2 soundfile librosa json yaml csv h5py imageio skimage")
"""Libraries that read no file of `torch.save`."""
_TELLS = _names("print info debug warning error critical exception log set_postfix set_description write_line")
_PATHS = _names("Path PurePath str fspath repr join makedirs mkdir abspath format basename dirname len")
_ENDS = _names("_exit abort kill execv execve execvp execl fork killpg")
_PICKLES = _names("__getstate__ __reduce__ __reduce_ex__ __deepcopy__ __copy__ __getnewargs__ __getnewargs_ex__")


def may_notice(
    sources: Mapping[str, Source], saves: Sequence[Save], loops: Sequence[tuple[str, Source, Loop]]
) -> str | None:
    """The line that may notice, and how; None where the saves of these loops may be put off until each has ended."""
    return (
        next(_ends_abruptly(sources), None)
        or next(_own_pickles(sources, saves), None)
        or next(_raised(sources, saves), None)
        or next(_uses(sources, saves, loops), None)
    )


def _line(path: str, source: Source, node: cst.CSTNode) -> str:
    return f"{path}:{source.lines_of(node)[0]} `{source.code(node).splitlines()[0]}`"


def _ends_abruptly(sources: Mapping[str, Source]) -> Iterator[str]:
    """Yield where the process may end without waiting for its threads, or goes on elsewhere at any time."""
    for path, source in sources.items():
        signals = source.may_name("signal")
        for call in source.every(cst.Call) if signals else source.calls_named(*_ENDS):
            ends = call_name(call) in _ENDS
            names = source.names(call.func) if ends or signals else ()
            if ends and any(name.startswith("os.") for name in names):
                yield f"{_line(path, source, call)} may end the process, or copy it, before the file is written"
            elif any(name == "signal.signal" for name in names):
                yield f"{_line(path, source, call)} handles a signal: the file may have to be there at once"


def _own_pickles(sources: Mapping[str, Source], saves: Sequence[Save]) -> Iterator[str]:
    """Classes that say themselves how they are copied or stored, where a state may hold more than tensors."""
    if all(_is_plain(source, call.args[0].value) for _, source, call in saves):
        return
    for path, source in sources.items():
        for function in source.functions_named(*_PICKLES):
            owner = source.inside(function, cst.ClassDef)
            if owner is not None:
                line = source.lines_of(function)[0]
                yield f"{path}:{line} has a {function.name.value} of its own, which is to run in the step"


def _is_plain(source: Source, state: cst.BaseExpression, seen: tuple[cst.CSTNode, ...] = ()) -> bool:
    """Whether a state holds tensors, numbers and texts alone, as its expression shows.

    `seen` are the names on the way to it: `state = dict(state)` does not show what the state was before.
    """
    if isinstance(state, cst.Call):
        if call_name(state) == "dict":
            return all(_is_plain(source, arg.value, seen) for arg in state.args)
        return call_name(state) in {"state_dict", "get_rng_state", "get_rng_state_all", "item", "int", "float", "str"}
    if isinstance(state, cst.Dict):
        return all(_is_plain(source, each.value, seen) for each in state.elements)
    if isinstance(state, cst.Name):
        bound = binding_of(source, state) if state not in seen else None
        return bound is not None and bound.value is not None and _is_plain(source, bound.value, (*seen, state))
    return isinstance(state, cst.BaseNumber | cst.SimpleString | cst.FormattedString | cst.BinaryOperation)


def _raised(sources: Mapping[str, Source], saves: Sequence[Save]) -> Iterator[str]:
    for path, _, call in saves:
        found = who_catches(sources, path, call, ERRORS_OF_FILES)
        if found is not None:
            where, source, statement = found
            yield f"{where}:{source.lines_of(statement)[0]} catches an error of the save"


def _uses(
    sources: Mapping[str, Source], saves: Sequence[Save], loops: Sequence[tuple[str, Source, Loop]]
) -> Iterator[str]:
    """Yield where the program uses files while one may be written."""
    begins: list[Place] = list(loops)
    for path, _, loop in loops:
        found = who_catches(sources, path, loop, None)
        if found is not None:  # the program goes on, and nothing has waited
            begins += runs_after(sources, found[0], found[2])
            if isinstance(found[2], cst.Try):
                begins += [(found[0], found[1], handler) for handler in found[2].handlers]
        begins += _ending(sources, path, loop)
    code = ReachableCode(sources, begins)
    ends = {end for path, source, call in saves for end in _tails(sources, path, source, call.args[1].value)}
    folders = _folders(sources)
    written = {call for _, _, call in saves}
    for path, source, call in code.every(cst.Call):
        if call not in written and _touches(source, call) and not _is_apart(sources, path, source, call, ends, folders):
            yield f"{_line(path, source, call)} may meet a file that is not written yet"
    yield from _uses_of_name(sources, saves, code, ends)


def _ending(sources: Mapping[str, Source], path: str, loop: Loop) -> Iterator[Place]:
    """Yield what `finally` and context managers around a loop do when an error or an interrupt leaves it."""
    source = sources[path]
    for above in source.ancestors(loop):
        if isinstance(above, cst.Try) and above.finalbody is not None:
            yield path, source, above.finalbody


def _touches(source: Source, call: cst.Call) -> bool:
    """Whether a call looks at files, changes them, sends them away, or starts something that may."""
    name = call_name(call)
    names = {each for each in source.names(call.func) if not each.startswith(("builtins.",))}
    module = next((each.split(".")[0] for each in names if "." in each), "")
    if module == "torch" or any(each.startswith("torch.") for each in names):
        inner = next(iter(names))
        return (
            name in {"load", "load_file", "spawn", "start_processes", "Process"}
            or "torch.distributed.checkpoint" in inner
        )
    if module in _NO_CHECKPOINTS or module in {"numpy", "pandas", "math", "random", "time"}:
        return name in {"read_pickle"}
    if module in _MODULES:
        return name not in _PURE and not any(each.startswith("os.environ") for each in names)
    if name == "open" and isinstance(call.func, cst.Name):
        return True
    if isinstance(call.func, cst.Name) and name in _METHODS:
        return name not in source.function_names
    if isinstance(call.func, cst.Attribute):
        root = call.func.value
        if name == "replace":
            return len(call.args) == 1
        if name == "open":
            return True
        if name in _METHODS:
            return not (isinstance(root, cst.Name) and root.value in {"self", "cls"})
        bound = binding_of(source, root) if isinstance(root, cst.Name) else None
        made = bound.value if bound is not None else None
        if isinstance(made, cst.Call) and call_name(made) not in _FETCHES:
            return any(each.split(".")[0] in _MODULES - {"os", "shutil"} for each in source.names(made.func))
    return False


def _is_apart(
    sources: Mapping[str, Source],
    path: str,
    source: Source,
    call: cst.Call,
    ends: set[str],
    folders: set[str],
) -> bool:
    """Whether the files that a call is about are others than those that are saved."""
    name = call_name(call)
    about = [arg.value for arg in call.args if arg.keyword is None][:1]
    if name in {"open", "exists", "is_file", "stat", "unlink", "read_bytes", "touch"} and not about:
        about = [call.func.value] if isinstance(call.func, cst.Attribute) else []
    if name == "open" and isinstance(call.func, cst.Attribute):
        about = [call.func.value, *about][:1]
    if not about or name in _OF_ANY_FILE:
        return False
    if name in {"exists"} and source.code(about[0]) in folders:
        return True
    if name == "open":
        given = argument(call, "mode", 0 if isinstance(call.func, cst.Attribute) else 1)
        mode = given.value if given is not None else None
        text = mode is None or (isinstance(mode, cst.SimpleString) and "b" not in mode.raw_value)
        if text:  # a file of torch.save is no text, and one that is written as text is none of these
            return not any(
                _may_be(end, other) for end in _tails(sources, path, source, about[0]) if end for other in ends
            )
    if name in {"rename", "replace", "copy", "copyfile", "copy2", "move", "link", "symlink"} and len(call.args) > 1:
        about = [arg.value for arg in call.args]
    of_module = any(each.split(".")[0] in {"os", "shutil"} for each in source.names(call.func))
    if name in {"rename", "replace", "symlink_to", "hardlink_to", "samefile"} and not of_module:
        about = [*about, call.func.value] if isinstance(call.func, cst.Attribute) else []
    known = _MODULES - {"os", "shutil", "joblib", "pickle", "dill", "safetensors"}
    if any(each.split(".")[0] in known for each in source.names(call.func)):
        return False
    tails = [_tails(sources, path, source, each) for each in about]
    return all(not _may_be(end, other) for some in tails for end in some for other in ends)


def _may_be(one: str, other: str) -> bool:
    """Whether two names of files, of each of which the end is known, may be one."""
    return one.endswith(other) or other.endswith(one)


def _tails(
    sources: Mapping[str, Source], path: str, source: Source, node: cst.BaseExpression, depth: int = 0
) -> set[str]:
    """Return how the name of a file ends, of `*.pt` behind the star, each way that it may; an empty text if unknown."""
    inner: list[tuple[str, Source, cst.BaseExpression]] = []
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return {_PATTERN.split(value)[-1] if isinstance(value, str) else ""}
    if isinstance(node, cst.FormattedString):
        last = node.parts[-1] if node.parts else None
        return {_PATTERN.split(last.value)[-1] if isinstance(last, cst.FormattedStringText) else ""}
    if isinstance(node, cst.ConcatenatedString | cst.BinaryOperation):
        operator = node.operator if isinstance(node, cst.BinaryOperation) else None
        inner = [(path, source, node.right)] if operator is None or isinstance(operator, cst.Add | cst.Divide) else []
    elif isinstance(node, cst.IfExp):
        inner = [(path, source, node.body), (path, source, node.orelse)]
    elif isinstance(node, cst.Call):
        name = call_name(node)
        if name in {"join", "Path", "str", "fspath", "with_suffix", "with_name", "joinpath"} and node.args:
            inner = [(path, source, node.args[-1].value)]
        elif (
            name == "format" and isinstance(node.func, cst.Attribute) and isinstance(node.func.value, cst.SimpleString)
        ):
            value = node.func.value.evaluated_value
            return {value.rpartition("}")[2] if isinstance(value, str) else ""}
    elif isinstance(node, cst.Attribute):
        value_of = member(source, node)
        inner = [(path, source, value_of)] if value_of is not None else []
    elif isinstance(node, cst.Name):
        inner = _bound(sources, path, source, node)
    if not inner or depth > 5:
        return {""}
    return {end for at, other, value in inner for end in _tails(sources, at, other, value, depth + 1)}


def _bound(
    sources: Mapping[str, Source], path: str, source: Source, node: cst.Name
) -> list[tuple[str, Source, cst.BaseExpression]]:
    bound = binding_of(source, node)
    if bound is None:
        return []
    if bound.value is not None:
        return [(path, source, bound.value)]
    if bound.parameter is None or not isinstance(bound.scope, cst.FunctionDef):
        return []
    owner = source.inside(bound.scope, cst.ClassDef)
    made = owner.name.value if owner is not None and bound.scope.name.value == "__init__" else None
    given = passed_to(bound.scope, bound.parameter, made, sources)
    if not given:
        return []
    default = bound.parameter.default
    found = [(at, sources[at], value) if value is not None else (path, source, default) for at, value in given]
    return [] if any(value is None for _, _, value in found) else [each for each in found if each[2] is not None]  # type: ignore[misc]


def _folders(sources: Mapping[str, Source]) -> set[str]:
    """Return what the program makes as folders, as code."""
    found: set[str] = set()
    for source in sources.values():
        for call in source.every(cst.Call):
            if call_name(call) in {"makedirs", "mkdir"}:
                of_path = isinstance(call.func, cst.Attribute) and not call.args and call_name(call) == "mkdir"
                found |= {source.code(call.args[0].value)} if call.args else set()
                if isinstance(call.func, cst.Attribute) and (of_path or call_name(call) == "mkdir"):
                    found.add(source.code(call.func.value))
    return found


def _uses_of_name(
    sources: Mapping[str, Source], saves: Sequence[Save], code: ReachableCode, ends: set[str]
) -> Iterator[str]:
    """Yield where the name of the file, or of its folder, is given to something that may use it. `ends` are of the
    file."""
    known = {word for _, source, call in saves for word in _words(source, call.args[1].value)}
    own = {function.name.value for source in sources.values() for function in source.every(cst.FunctionDef)}
    own |= {each.name.value for source in sources.values() for each in source.every(cst.ClassDef)}
    written = {call for _, _, call in saves}
    changed = True
    while changed:
        changed = False
        for _, source, assign in code.every(cst.Assign):
            target = assign.targets[0].target
            if isinstance(target, cst.Name | cst.Attribute) and _mentions(source, assign.value, known):
                word = source.code(target)
                changed = changed or word not in known
                known.add(word)
        for _, source, call in code.every(cst.Call):
            for word in _parameters(sources, source, call, known) if call_name(call) in own else ():
                changed = changed or word not in known
                known.add(word)
    for path, source, call in code.every(cst.Call):
        name = call_name(call)
        within = any(above in written for above in source.ancestors(call))
        if within or call in written or name in own | _PATHS | {"save", "append"}:
            continue
        if name in _TELLS | {"write"} and not any(
            arg.keyword is not None and arg.keyword.value == "file" for arg in call.args
        ):
            told = name in _TELLS or source.code(call.func).startswith("tqdm")
            if told:
                continue
        if name in {"open", "exists"} and isinstance(call.func, cst.Name | cst.Attribute):
            continue  # asked above
        given = (arg.value for arg in call.args if _is_word(source, arg.value, known))
        if not all(_is_another_file(_tails(sources, path, source, each), ends) for each in given):
            yield f"{_line(path, source, call)} takes the name of a file that is not written yet"


def _is_another_file(tails: set[str], ends: set[str]) -> bool:
    """Whether a name, which ends in one of these ways, is of a file, and of none that is saved."""
    return all(_ENDING.search(tail) and not any(_may_be(tail, end) for end in ends) for tail in tails)


def _words(source: Source, path: cst.BaseExpression) -> Iterator[str]:
    """Code that stands for a file, and for its folder."""
    if isinstance(
        path, cst.Name | cst.Attribute | cst.SimpleString | cst.FormattedString | cst.Call | cst.BinaryOperation
    ):
        yield source.code(path)
    if isinstance(path, cst.Call) and call_name(path) == "join":
        yield from (word for arg in path.args[:-1] for word in _words(source, arg.value))
    elif isinstance(path, cst.BinaryOperation):
        yield from _words(source, path.left)
    elif isinstance(path, cst.FormattedString) and len(path.parts) > 1:
        first, second = path.parts[0], path.parts[1]
        slash = isinstance(second, cst.FormattedStringText) and second.value.startswith(("/", "\\"))
        if isinstance(first, cst.FormattedStringExpression) and slash:
            yield from _words(source, first.expression)


def _mentions(source: Source, node: cst.CSTNode, known: set[str]) -> bool:
    parts = (cst.Name, cst.Attribute, cst.SimpleString, cst.FormattedString, cst.Call, cst.BinaryOperation)
    within_call = isinstance(node, cst.Call) and call_name(node) not in _PATHS
    return not within_call and any(source.code(each) in known for each in source.walk(node) if isinstance(each, parts))


def _is_word(source: Source, node: cst.BaseExpression, known: set[str]) -> bool:
    """Whether an argument is the name of a file, or a list or a formatted text with it."""
    if isinstance(node, cst.Call) and call_name(node) not in _PATHS:
        return False
    return _mentions(source, node, known)


def _parameters(sources: Mapping[str, Source], source: Source, call: cst.Call, known: set[str]) -> Iterator[str]:
    """The parameters of functions of the program that get the name of a file."""
    for at, arg in enumerate(call.args):
        if not _is_word(source, arg.value, known):
            continue
        if arg.keyword is not None:
            yield arg.keyword.value
            continue
        for other in sources.values():
            for function in other.every(cst.FunctionDef):
                listed = [each.name.value for each in function.params.params]
                bound = listed[:1] in (["self"], ["cls"])
                if function.name.value == call_name(call) and at + bound < len(listed):
                    yield listed[at + bound]
