"""Lets torch compute a cross entropy that the program writes out.

What it changes
    `-log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).mean()`, `-log_p[torch.arange(n), targets].mean()` and
    `F.nll_loss(F.log_softmax(logits, 1), targets)`, also over several lines, become `F.cross_entropy(…)`.

Why it helps
    One call says what is meant, and what is done to the log-probabilities beside goes. In eager code that is little:
    torch's own computes log-probabilities too, keeps them for the backward pass, and writes zeros for the gradient of
    the entries that were picked. What moves the logits less often is a fused loss, which has its turn first.

Fix safety
    Rounding: the same sum in another order. A target that is no class, at which gather fails, is counted as nothing
    where it is -100. Left alone: log-probabilities that are read for something else too, and axes that cannot be seen
    to be those of the classes.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.losses.nll_loss import WrittenLikelihood, written_likelihoods
from diagnose.source.rewrite.functional import functional, operand
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place
from diagnose.source.tree.edits import Source, Splice, parse


def rewrite(request: Request) -> Answer:
    """Replace every one of the program's files."""
    edits: list[tuple[str, list[Splice]]] = []
    for path, text in request.sources.items():
        source = parse(text) if "log_softmax" in text else None
        if source is not None:
            edits += [(path, _edits(source, found)) for found in written_likelihoods(source)]
    files = request.edited(edits)
    return Edits(files, "compute the cross entropy in one call") if files else None


def _edits(source: Source, found: WrittenLikelihood) -> list[Splice]:
    assert found.logits is not None and found.targets is not None
    entries = found.reduction not in {"mean", "sum"} and not found.keywords and found.negative
    if entries and not isinstance(found.targets, cst.Name | cst.Attribute):
        return []  # it would be evaluated twice
    if found.sizes:
        return []  # nothing shows that rows are whole
    name, imports = functional(source)
    logits, targets = operand(source, found.logits), operand(source, found.targets)
    flat = found.classes == -1 and not found.flat
    arguments = [
        logits + (".flatten(0, -2)" if flat or found.flat else "") + (".float()" if found.single else ""),
        targets + (".flatten()" if flat or found.column else ""),
    ]
    arguments += [f"{keyword}={source.code(value)}" for keyword, value in found.keywords]
    arguments += ['reduction="sum"'] if found.reduction == "sum" else ['reduction="none"'] if entries else []
    after = f".view_as({targets})" if entries and flat else ""
    called = call_in_place(source, found.root, f"{name}.cross_entropy", arguments, after)
    return [*imports, *called, *take_out(source, [statement for statement, _ in found.steps])]


def _recorded(text: str) -> Request:
    return example_request("unfused-loss", text)


def _example(before: str, after: str | None) -> Example:
    def whole(body: str) -> str:
        return f"import torch\nimport torch.nn.functional as F\n\n\ndef loss_of(logits, y):\n{body}"

    return Example(whole(before), whole(after) if after is not None else None, _recorded)


FIXER = Fixer(
    name="native-cross-entropy",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=50,
    after=("fuse-linear-cross-entropy", "fuse-cross-entropy", "compile-loss", "compile-model", "use-diagnose-backend"),
    saves="loss, beside what torch's own does",
    examples=(
        _example(
            "    log_p = torch.log_softmax(logits.float(), dim=-1)\n"
            "    return -log_p.gather(-1, y.unsqueeze(-1)).mean()\n",
            "    return F.cross_entropy(logits.float().flatten(0, -2), y.flatten())\n",
        ),
        _example(
            "    log_p = F.log_softmax(logits, dim=-1, dtype=torch.float32)\n"
            "    nll = -log_p.gather(dim=-1, index=y[..., None]).squeeze(-1)\n    mask = y > 0\n"
            "    return (nll * mask).sum() / mask.sum()\n",
            '    nll = F.cross_entropy(logits.flatten(0, -2).float(), y.flatten(), reduction="none").view_as(y)\n'
            "    mask = y > 0\n    return (nll * mask).sum() / mask.sum()\n",
        ),
        _example(
            "    n = len(y)\n    return -F.log_softmax(logits, 1)[torch.arange(n), y].mean()\n",
            "    n = len(y)\n    return F.cross_entropy(logits, y)\n",
        ),
        _example(
            "    return F.nll_loss(F.log_softmax(logits.view(-1, 9), dim=-1), y.view(-1), ignore_index=0)\n",
            "    return F.cross_entropy(logits.view(-1, 9), y.view(-1), ignore_index=0)\n",
        ),
        _example("    log_p = F.log_softmax(logits, -1)\n    return F.nll_loss(log_p, y), log_p\n", None),
        _example("    return F.nll_loss(F.log_softmax(logits, dim=-1), y)\n", None),
        _example("    return F.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).mean()\n", None),
        _example("    return F.cross_entropy(logits, y)\n", None),
    ),
)
