"""Stops giving the allocator's memory back in every step.

What it changes
    Takes `torch.cuda.empty_cache()` out of the code that runs in every step: the body of the training loop and the
    functions that it calls. A `gc.collect()` in the same block goes with it, and so does the `if` around them where
    nothing else is in it, and `import gc` where nothing else uses it.

Why it helps
    torch keeps memory that tensors leave and hands it to the next ones. `empty_cache()` gives it back to the driver,
    which waits for the device to finish all it was asked for, and the next step asks the driver for the same memory
    again. It frees nothing that torch could not reuse itself.

Fix safety
    Bitwise: where memory comes from changes no number. Memory that other processes on the device would take in the
    meantime stays reserved. Left alone where the program tells how much the device holds; `gc.collect()` stays where
    the program sees what is collected (`weakref`, `__del__`, `gc.get_objects`). Calls after a validation or behind a
    counter are left alone, unless the finding names their line; calls in handlers of errors always are, as they make
    room after memory ran out.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.rewrite.leftovers import without_import
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.edits import Source, splice
from diagnose.source.tree.text_lines import any_matches

_EMPTIES = re.compile(r"(^|\.)(cuda|accelerator|xpu|mps|npu|memory)\.empty_cache$")
_TOLD = re.compile(
    r"(^|\.)(max_)?memory_(reserved|cached|stats|summary|snapshot)$|mem_get_info$|nvmlDeviceGetMemoryInfo$"
)
_SEEN = re.compile(r"\bweakref\b|\b__del__\b|\bgc\.(?:get_\w+|callbacks|garbage)\b|\btracemalloc\b|\bmemory_info\(")
_ABOUT = r"cache|memory|fragment|\boom\b|garbage|collect|\bfree"


def rewrite(request: Request) -> Answer:
    """Take out every call that a step makes."""
    found: dict[str, list[cst.Call]] = {}
    reasons: list[str] = []
    code = EveryStep(request.sources, request.finding.where)
    for stretch, call in code.calls("empty_cache"):
        if _empties(stretch.source, call) and stretch.source.inside(call, cst.ExceptHandler) is None:
            if isinstance(stretch.source.parent(call), cst.Expr):
                found.setdefault(stretch.path, []).append(call)
            else:
                reasons.append(f"{stretch.path}:{stretch.source.lines_of(call)[0]} empties the cache in an expression.")
    told = _memory_told(code) if found else None
    if told is not None:
        return Advice(f"{told} tells how much memory the device holds, which the call changes: take it out by hand.")
    files = {path: _without(code.sources[path], calls, _sees_collections(code)) for path, calls in found.items()}
    if files:
        return Edits(files, "do not give memory back to the driver in every step")
    return Advice(" ".join([*reasons, "Take the call out of the step by hand."])) if reasons else None


def _memory_told(code: EveryStep) -> str | None:
    """The line that asks how much memory is reserved."""
    for path, source in code.mentioning("memory_", "mem_get_info", "nvmlDeviceGetMemoryInfo").items():
        for call in source.every(cst.Call):
            if _TOLD.search(source.code(call.func)):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


def _sees_collections(code: EveryStep) -> bool:
    """Whether the program sees when objects are collected: `gc.collect()` is then more than a use of time."""
    return any_matches(_SEEN, (source.text for source in code.sources.values()))


def _empties(source: Source, call: cst.Call) -> bool:
    names = {*source.names(call.func), source.code(call.func)}
    return any(_EMPTIES.search(name) for name in names)


def _without(source: Source, calls: list[cst.Call], seen: bool) -> str:
    statements: dict[cst.BaseSmallStatement, None] = {}
    for call in calls:
        statement = source.parent(call)
        assert isinstance(statement, cst.Expr)  # the others were left alone
        statements[statement] = None
        statements |= dict.fromkeys([] if seen else _collections_beside(source, statement))
    splices = remove_statements(source, list(statements), _ABOUT)
    return splice(source.text, without_import(source, splices, "gc"))


def _collections_beside(source: Source, statement: cst.Expr) -> list[cst.Expr]:
    """Calls of `gc.collect()` in the same block, or beside the `if` around it."""
    blocks = [above for above in source.ancestors(statement) if isinstance(above, cst.IndentedBlock)][:2]
    if len(blocks) > 1 and not isinstance(source.parent(blocks[0]), cst.If):
        del blocks[1]
    lines = [line for block in blocks for line in block.body]
    return [
        small
        for each in lines
        if isinstance(each, cst.SimpleStatementLine)
        for small in each.body
        if isinstance(small, cst.Expr)
        and isinstance(small.value, cst.Call)
        and "gc.collect" in {*source.names(small.value.func), source.code(small.value.func)}
    ]


def _recorded(text: str) -> Request:
    return example_request("allocator-churn", text)


_LOOP = "for x in loader:\n    optimizer.zero_grad()\n    model(x).sum().backward()\n    optimizer.step()\n"

FIXER = Fixer(
    name="drop-empty-cache",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle",
    order=10,
    examples=(
        Example(
            before="import torch\n\n" + _LOOP + "    torch.cuda.empty_cache()  # to be safe\n    print(x)\n",
            after="import torch\n\n" + _LOOP + "    print(x)\n",
            request=_recorded,
        ),
        Example(
            before="import gc\n\nimport torch\n\n"
            + _LOOP
            + "\n    # free memory\n    gc.collect()\n    if device == 'cuda':\n        torch.cuda.empty_cache()\n",
            after="import torch\n\n" + _LOOP,
            request=_recorded,
        ),
        Example(
            before="import gc\nimport torch\n\n"
            + _LOOP
            + "    del x\n    gc.collect()\n    torch.cuda.empty_cache()\n",
            after="import torch\n\n" + _LOOP + "    del x\n",
            request=_recorded,
        ),
        Example(
            before="import gc\nimport torch\n\n" + _LOOP + "    del x; gc.collect(); torch.cuda.empty_cache()\n",
            after="import torch\n\n" + _LOOP + "    del x\n",
            request=_recorded,
        ),
        Example(
            before="from torch.cuda import empty_cache\n\ndef step(x):\n    model(x).sum().backward()\n"
            "    clean()\n\ndef clean():\n    empty_cache()\n\nfor x in loader:\n    step(x)\n",
            after="from torch.cuda import empty_cache\n\ndef step(x):\n    model(x).sum().backward()\n"
            "    clean()\n\ndef clean():\n    pass\n\nfor x in loader:\n    step(x)\n",
            request=_recorded,
        ),
        Example(
            before="import torch\n" + _LOOP + "    if step % 3 == 0: torch.cuda.empty_cache()\n",
            after="import torch\n" + _LOOP,
            request=lambda text: example_request("allocator-churn", text, lines=[6]),
        ),
        Example(
            before="import torch\ntry:\n    train()\nexcept torch.cuda.OutOfMemoryError:\n"
            "    torch.cuda.empty_cache()\n    train(batch_size=8)\n",
            after=None,
            request=lambda text: example_request("allocator-churn", text, lines=[5]),
        ),
        Example(
            before="import torch\n" + _LOOP + "    if step % 100 == 0:\n        torch.cuda.empty_cache()\n",
            after=None,
            request=_recorded,
        ),
        *word_diffs(
            _recorded,
            "import torch\nfor epoch in range(3):\n    train(model)\n    torch.cuda.empty_cache()\n",
            (
                "import torch\nfor x in loader:\n    try:\n        model(x).sum().backward()\n"
                "    except torch.cuda.OutOfMemoryError:\n        torch.cuda.empty_cache()\n    optimizer.step()\n"
            ),
        ),
    ),
)
