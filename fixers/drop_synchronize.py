"""Stops waiting for the device where nothing needs the wait.

What it changes
    Takes `torch.cuda.synchronize()` out of the code that runs in every step, with the `if` around it where nothing
    else is in it.

Why it helps
    The host runs ahead of the device and keeps its queue filled. A synchronisation makes it wait until the queue is
    empty, and until the host has filled it again the device has nothing to do.

Fix safety
    Bitwise: operations on one stream run in their order with or without it. Left alone, with advice: a call in a
    step in which the program reads a clock, since the wait makes its timing true; programs with streams or graphs of
    their own, or with copies to the host that are not waited for otherwise, where the wait may keep the data right.
    A wait behind a counter, or after the loop, is left alone. As the host no longer waits, it runs ahead of the device,
    which can raise peak memory.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    EveryStep,
    Example,
    Fixer,
    Gate,
    Request,
    Stretch,
    example_request,
    remove_statements,
    splice,
)

_WAITS = re.compile(r"(^|\.)(cuda|accelerator|xpu|mps|npu)\.synchronize$")
_ABOUT = r"sync|wait|finish"
_CLOCK = re.compile(r"(^|\.)(perf_counter|monotonic|process_time|default_timer|elapsed_time|time)(_ns)?$")
_OWN_STREAMS = re.compile(r"\bcuda\.(Stream|stream|CUDAGraph|graph)\(|\.replay\(\)|\.wait_stream\(")
_UNWAITED = re.compile(
    r"\.to\(\s*(?:device\s*=\s*)?(?:torch\.device\(\s*)?[\"']cpu[\"'][^)]*\)?[^)]*non_blocking|\.cpu\([^)]*non_blocking"
    r"|\.copy_\([^)\n]*non_blocking\s*=\s*True"
)


def rewrite(request: Request) -> Answer:
    """Take out every wait of a step that serves nothing."""
    found: dict[str, list[cst.Expr]] = {}
    reasons: list[str] = []
    code = EveryStep(request.sources, request.finding.where)
    for stretch, call in code.calls():
        source = stretch.source
        if not any(_WAITS.search(name) for name in {*source.names(call.func), source.code(call.func)}):
            continue
        statement = source.parent(call)
        reason = _needed(request, code, stretch)
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


def _needed(request: Request, code: EveryStep, stretch: Stretch) -> str | None:
    """What a wait may be there for; None where it serves nothing."""
    loops = [each for each in code.stretches if each.loop is not None]
    if any(_reads_clock(each) for each in [stretch, *loops]):
        return (
            "the program reads a clock in every step, and without the wait would time how fast work is asked for. "
            "Time many steps from one log line to the next instead, with one wait before each clock."
        )
    if any(_OWN_STREAMS.search(text) for text in request.sources.values()):
        return "the program has streams or graphs of its own, whose order the wait may keep."
    if any(_UNWAITED.search(text) for text in request.sources.values()):
        return "the program copies with non_blocking=True, and the wait may be what makes the copy complete."
    return None


def _reads_clock(stretch: Stretch) -> bool:
    return any(_CLOCK.search(stretch.source.code(call.func)) for call in stretch.steady(cst.Call))


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
