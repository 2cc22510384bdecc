"""Computes a metric only in the steps that show it.

What it changes
    Statements of the training loop whose results only the log branch looks at (`if step % 100 == 0:`) move into that
    branch: the assignment of a metric, an `append` to a list of which only the last entry is printed, and what
    computes the values that they take.

Why it helps
    A metric in Python, over every batch, costs the same whether anybody sees it or not. While the host computes it,
    the device runs out of work; most of its values are thrown away.

Fix safety
    Bitwise: what is shown is computed from the same values, in the same step. Only code that is known to compute and
    change nothing is moved: functions of the file that bind their own names, builtins, methods of tensors that draw no
    random number. A list that is looked at in any other way, or after the loop, is left alone.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.dataflow.flow import Loop, is_append, scope_of, uses_of, within
from diagnose.source.dataflow.purity import only_computes
from diagnose.source.training.every_step import batch_loops
from diagnose.source.tree.edits import Source, Splice, splice
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.syntax import only_statement


def rewrite(request: Request) -> Answer:
    """Guard what only a log branch looks at, in every training loop."""
    files: dict[str, str] = {}
    moved: list[str] = []
    for path, source in files_with(request.sources, where=lambda text: "%" in text and "backward" in text):
        for loop in batch_loops(source):
            if path not in files:
                splices, names = _guard(source, loop)
                if splices:
                    files[path] = splice(source.text, splices)
                    moved += names
    if not files:
        return None
    return Edits(files, f"compute {', '.join(dict.fromkeys(moved))} only in the steps that show it")


def _guard(source: Source, loop: Loop) -> tuple[list[Splice], list[str]]:
    """The edits for the statements right before a log branch of a loop, and the variables they fill."""
    if not isinstance(loop.body, cst.IndentedBlock):
        return [], []
    rows = list(loop.body.body)
    functions = {each.name.value: each for each in source.every(cst.FunctionDef)}
    for at, branch in enumerate(rows):
        if not _is_log_branch(source, branch):
            continue
        assert isinstance(branch, cst.If)  # what a log branch is
        first, names = at, list[str]()
        while first > 0:
            name = _only_for(source, rows[first - 1], [*rows[first:at], branch], loop, functions)
            if name is None or any(source.named(name, branch.test)):
                break
            first -= 1
            names.append(name)
        run = rows[first:at]
        if any(any(source.every(cst.Call, row)) for row in run):
            return _moved_into(source, run, branch), names
    return [], []


def _is_log_branch(source: Source, row: cst.CSTNode) -> bool:
    return (
        isinstance(row, cst.If)
        and row.orelse is None
        and isinstance(row.body, cst.IndentedBlock)
        and any(source.every(cst.Modulo, row.test))
        and not any(source.every(cst.Call, row.test))
    )


def _only_for(
    source: Source,
    row: cst.CSTNode,
    readers: list[cst.BaseStatement],
    loop: Loop,
    functions: dict[str, cst.FunctionDef],
) -> str | None:
    """The variable that a statement fills for `readers` (which follow it) alone; None where it must stay."""
    small = only_statement(row)
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
        name, value = small.targets[0].target.value, small.value
        appended = False
    elif isinstance(small, cst.Expr) and is_append(small.value) and isinstance(small.value, cst.Call):
        name = source.code(small.value.func).removesuffix(".append")
        value = small.value.args[0].value
        appended = True
    else:
        return None
    uses = uses_of(source, scope_of(source, loop), name)
    if uses.lost or uses.augmented or not only_computes(source, value, functions):
        return None
    if appended:
        starts = all(isinstance(start, cst.List) and not start.elements for _, start in uses.assigned)
        if not starts or any(within(source, target, loop) for target, _ in uses.assigned):
            return None
        reads = [use for use in uses.reads if not within(source, use, row)]
        seen = all(_is_last_entry(source, use) for use in reads)
    else:
        reads, seen = list(uses.reads), len(uses.assigned) == 1
    inside = all(any(within(source, use, reader) for reader in readers) for use in reads)
    return name if seen and inside and reads else None


def _is_last_entry(source: Source, use: cst.BaseExpression) -> bool:
    part = source.parent(use)
    return isinstance(part, cst.Subscript) and part.value is use and source.code(part).endswith("[-1]")


def _moved_into(source: Source, run: list[cst.BaseStatement], branch: cst.If) -> list[Splice]:
    """The branch's own line moves up before the run, which is indented."""
    start = source.line_start(source.span(run[0])[0])
    head = source.line_start(source.span(branch)[0])
    body = source.line_start(source.span(branch.body.body[0])[0]) if branch.body.body else head
    header = source.text[head:body]
    indent = source.indent(run[0])
    splices = [Splice(start, start, header)]
    at = start
    while at < head:
        line = source.text[at : source.line_end(at)]
        if line.strip():
            behind = at + len(indent) if line.startswith(indent) else at
            splices.append(Splice(behind, behind, source.indentation))
        at = source.after_line(at)
    return [*splices, Splice(head, body, "")]


def _recorded(text: str) -> Request:
    return example_request("python-stall", text)


_TOP = (
    "import torch\n\n\ndef error_rate(answers, texts):\n    wrong = [a != b for a, b in zip(answers, texts)]\n"
    "    return sum(wrong) / len(wrong)\n\n\nrates = []\nfor step in range(9):\n    logits = model(x)\n"
    "    logits.sum().backward()\n"
)
_METRIC = "    answers = logits.argmax(dim=-1).tolist()\n    rates.append(error_rate(answers, texts))\n"
_LOG = "    if step % 100 == 0:\n"


FIXER = Fixer(
    name="guard-metric",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+idle",
    order=20,
    examples=(
        Example(
            _TOP + _METRIC + _LOG + "        print(step, rates[-1])\n",
            _TOP
            + _LOG
            + "        answers = logits.argmax(dim=-1).tolist()\n        rates.append(error_rate(answers, texts))\n"
            "        print(step, rates[-1])\n",
            _recorded,
        ),
        Example(
            _TOP
            + "    rate = error_rate(\n        logits.tolist(),\n        texts,\n    )\n"
            + _LOG
            + "        print(rate)\n",
            _TOP + _LOG + "        rate = error_rate(\n            logits.tolist(),\n            texts,\n        )\n"
            "        print(rate)\n",
            _recorded,
        ),
        *word_diffs(
            _recorded,
            _TOP + _METRIC + _LOG + "        print(rates[-1])\nprint(rates[-1])\n",
            _TOP + _METRIC + _LOG + "        print(sum(rates))\n",
            _TOP + _METRIC + "    if rates[-1] > 3:\n        break\n" + _LOG + "        print(rates[-1])\n",
            _TOP + "    rate = evaluate(model)\n" + _LOG + "        print(rate)\n",
            _TOP + "    noise = torch.rand(3).tolist()\n" + _LOG + "        print(noise)\n",
        ),
    ),
)
