"""Stops waiting for the device where nothing needs the wait.

What it changes
    Takes `torch.cuda.synchronize()` out of the code that runs in every step, with the `if` around it where nothing
    else is in it.

Why it helps
    The host runs ahead of the device and keeps its queue filled. A synchronisation makes it wait until the queue is
    empty, and until the host has filled it again the device has nothing to do.

Fix safety
    Bitwise: operations on one stream run in their order with or without it. Left alone, with advice: a call in a
    step in which the program reads a clock or the use of memory, also by a function, a decorator or a context of its
    own, since the wait makes what is read true; programs that profile, or that time with events; programs with streams,
    graphs or kernels of their own, or with copies to the host that are not waited for otherwise, where the wait may
    keep the data right; and a wait whose error the program catches. A wait behind a counter, or after the loop, is left
    alone. As the host no longer waits, it runs ahead of the device, which can raise peak memory.
"""

from __future__ import annotations

import ast
import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.exception_handlers import who_catches
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.every_step import EveryStep, Stretch, is_occasional
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import Source, call_name, splice
from diagnose.source.tree.outline import Function
from diagnose.source.tree.text_lines import any_matches, matches

_WAITS = re.compile(r"(^|\.)(cuda|accelerator|xpu|mps|npu)\.synchronize$")
_ABOUT = r"sync|wait|finish"
_CLOCK = re.compile(
    r"(^|\.)(perf_counter|monotonic|process_time|default_timer|elapsed_time|time|utcnow|now|today)(_ns)?$"
)
_MEMORY = re.compile(r"(^|\.)(max_)?memory_(allocated|reserved|stats|summary)$|mem_get_info$|utilization$")
_CLOCKS = re.compile(
    r"\b(?:perf_counter|monotonic|process_time|default_timer|elapsed_time|time|utcnow|now|today)(?:_ns)?\b"
    r"|memory_(?:allocated|reserved|stats|summary)|mem_get_info|utilization"
)
"""The words in a file that reads one of them."""
_WATCHED = re.compile(
    r"\.elapsed_time\(|\.query\(\)|\bprofiler?\.(?:profile|record_function|start)\b|\bemit_nvtx\b|\bcudart\("
)
_OWN_STREAMS = re.compile(
    r"\b(?:Stream|ExternalStream|CUDAGraph)\(|\bcuda\.(?:stream|graph)\(|\.replay\(\)|\.wait_stream\(|\bcupy\b|\bctypes\b"
    r"|\bnumba\b|\bpycuda\b|\bdlpack\b|\bload_inline\(|\bcpp_extension\b"
)


def rewrite(request: Request) -> Answer:
    """Take out every wait of a step that serves nothing."""
    found: dict[str, list[cst.Expr]] = {}
    reasons: list[str] = []
    code = EveryStep(request.sources, request.finding.where)
    for stretch, call in code.calls("synchronize"):
        source = stretch.source
        if not any(_WAITS.search(name) for name in {*source.names(call.func), source.code(call.func)}):
            continue
        if is_occasional(source, call, stretch.body):
            continue
        statement = source.parent(call)
        reason = _needed(request, code, stretch, call)
        if reason is None and isinstance(statement, cst.Expr):
            found.setdefault(stretch.path, []).append(statement)
        else:
            why = reason or "it is a part of an expression."
            reasons.append(f"{stretch.path}:{source.lines_of(call)[0]} is left alone: {why}")
    files = {
        path: splice(code.sources[path].text, remove_statements(code.sources[path], statements, _ABOUT))
        for path, statements in found.items()
    }
    if files:
        return Edits(files, "do not wait for the device in every step")
    return Advice(" ".join(reasons)) if reasons else None


def _needed(request: Request, code: EveryStep, stretch: Stretch, wait: cst.Call) -> str | None:
    """Return what a wait may be there for; None where it serves nothing."""
    clock = _clock(code, stretch)
    if clock is not None:
        return (
            f"the program reads a clock in every step ({clock}), and without the wait would time how fast work is "
            "asked for. Time many steps from one log line to the next instead, with one wait before each clock."
        )
    if any_matches(_WATCHED, request.sources.values()):
        return "the program profiles, or times with events, and the wait may be what completes them."
    if any_matches(_OWN_STREAMS, request.sources.values()):
        return "the program has streams, graphs or kernels of its own, whose order the wait may keep."
    for path, source in code.mentioning("non_blocking").items():
        for call in source.every(cst.Call):
            if _is_unwaited(source, call):
                line = f"{path}:{source.lines_of(call)[0]}"
                return f"{line} copies with non_blocking=True, and the wait may be what makes the copy complete."
    found = who_catches(code.sources, stretch.path, wait, {"RuntimeError"})
    if found is not None:
        return f"{found[0]}:{found[1].lines_of(found[2])[0]} may catch the error of a kernel that the wait tells."
    return None


def _clock(code: EveryStep, around: Stretch) -> str | None:
    """The line at which a step reads a clock, or how much memory is in use; None where none does."""
    pieces = [around, *(each for each in code.stretches if each.loop is not None or each is not around)]
    opened = any(
        any(stretch.steady(cst.With)) for stretch in code.stretches if stretch.may_hold(ast.With, ast.AsyncWith)
    )
    around_steps = _decorators(code) | ({"__enter__", "__exit__", "__call__"} if opened else set())
    for path, source in code.sources.items():
        if matches(_CLOCKS, source.text):
            pieces += [Stretch(path, source, each, None) for each in source.functions_named(*around_steps)]
    for piece in pieces:
        if not matches(_CLOCKS, piece.source.text):
            continue
        inner = _calls_of(piece)
        for call in inner:
            names = {piece.source.code(call.func), *piece.source.names(call.func), *_bound_names(piece.source, call)}
            if any(_CLOCK.search(name) or _MEMORY.search(name) for name in names):
                return f"{piece.path}:{piece.source.lines_of(call)[0]}"
    return None


def _calls_of(piece: Stretch) -> list[cst.Call]:
    """The calls of a piece that every turn makes; of a decorator, those of the function that it makes, too."""
    if isinstance(piece.body, cst.FunctionDef) and any(
        each is not piece.body for each in piece.source.every(cst.FunctionDef, piece.body)
    ):
        return list(piece.source.every(cst.Call, piece.body))
    return list(piece.steady(cst.Call))


def _decorators(code: EveryStep) -> set[str]:
    """The names of what decorates the functions that a step calls."""
    outlined = (stretch.node.node for stretch in code.stretches if isinstance(stretch.node, Function))
    nodes = (each for function in outlined for decorator in function.decorator_list for each in ast.walk(decorator))
    names = {getattr(each, field) for each in nodes for field in ("id", "attr", "arg") if hasattr(each, field)}
    return names | {
        name.value
        for stretch in code.stretches
        if not isinstance(stretch.node, Function)
        for function in (stretch.body, stretch.source.inside(stretch.body, cst.FunctionDef))
        if isinstance(function, cst.FunctionDef)
        for decorator in function.decorators
        for name in stretch.source.every(cst.Name, decorator)
    }


def _bound_names(source: Source, call: cst.Call) -> set[str]:
    """Return what `clock` stands for, after `clock = time.perf_counter`."""
    bound = binding_of(source, call.func) if isinstance(call.func, cst.Name) else None
    if bound is not None and isinstance(bound.value, cst.Name | cst.Attribute):
        return {source.code(bound.value), *source.names(bound.value)}
    return {".".join(bound.imported)} if bound is not None and bound.imported is not None else set()


def _is_unwaited(source: Source, call: cst.Call) -> bool:
    """Whether a call copies to the host, or into a buffer, and does not wait for the copy."""
    given = argument(call, "non_blocking")
    name = call_name(call)
    if given is None or source.code(given.value) == "False" or name not in {"to", "cpu", "copy_"}:
        return False
    target = argument(call, "device", 0) if name == "to" else None
    return name != "to" or target is None or _is_host(source, target.value)


def _is_host(source: Source, device: cst.BaseExpression) -> bool:
    """Whether a device may be the host alone: it is named `cpu`, and no other with it."""
    bound = binding_of(source, device) if isinstance(device, cst.Name) else None
    code = source.code(bound.value if bound is not None and bound.value is not None else device)
    return "cpu" in code and "cuda" not in code


def _recorded(text: str) -> Request:
    return example_request("host-sync", text)


_LOOP = "for x in loader:\n    optimizer.zero_grad()\n    model(x).sum().backward()\n    optimizer.step()\n"
_TOP = "import time\n\nimport torch\n\n"


def _left_alone(text: str) -> Example:
    return Example(_TOP + text, None, _recorded)


FIXER = Fixer(
    name="drop-synchronize",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="sync_calls",
    order=20,
    examples=(
        Example(_TOP + _LOOP + "    torch.cuda.synchronize()\n", _TOP + _LOOP, _recorded),
        Example(
            _TOP + _LOOP + "    # wait for the step to finish\n    if torch.cuda.is_available():\n"
            "        torch.cuda.synchronize(device)\n    seen += len(x)\n",
            _TOP + _LOOP + "    seen += len(x)\n",
            _recorded,
        ),
        Example(
            _TOP + "class Net(nn.Module):\n    def forward(self, x):\n        x = self.a(x); torch.cuda.synchronize()\n"
            "        return self.b(x)\n\n" + _LOOP,
            _TOP + "class Net(nn.Module):\n    def forward(self, x):\n        x = self.a(x)\n"
            "        return self.b(x)\n\n" + _LOOP,
            _recorded,
        ),
        Example(
            _TOP + _LOOP + "    torch.cuda.synchronize()\n    if i % 9 == 0:\n        print(time.time() - start)\n",
            _TOP + _LOOP + "    if i % 9 == 0:\n        print(time.time() - start)\n",
            _recorded,
        ),
        _left_alone("start = time.time()\n" + _LOOP + "    torch.cuda.synchronize()\n    print(time.time() - start)\n"),
        _left_alone(_LOOP + "    if i % 50 == 0:\n        torch.cuda.synchronize()\n"),
        _left_alone(_LOOP + "torch.cuda.synchronize()\nprint(time.time())\n"),
        _left_alone("side = torch.cuda.Stream()\n" + _LOOP + "    torch.cuda.synchronize()\n"),
        _left_alone(_LOOP + "    y = x.to('cpu', non_blocking=True)\n    torch.cuda.synchronize()\n    log(y)\n"),
    ),
)
