"""Lets one operator compute the cross entropy of logits over a large vocabulary, in single precision as it reads them.

What it changes
    `F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))` becomes `cross_entropy` of `diagnose.kernels`,
    with the same options, and so does what is written out, `-log_softmax(logits, -1).gather(-1, …).mean()`. A change of
    the logits to single precision on the way goes: the operator sums in it. Where classes were made the second axis for
    the loss, they stay the last.

Why it helps
    PyTorch writes the log-probabilities of all logits, reads them again in the backward pass, and a change of format
    before it writes and holds twice as much once more. The operator reads the logits once forward, and reads them and
    writes their gradient once backward.

Fix safety
    Rounding: sums in another order, in float32; the gradient has the format of the logits. The program then imports
    `diagnose.kernels`, which needs torch, and Triton to be fast, and nothing else: where it runs, this package has to
    be installed. Left alone: logits whose classes are not seen to come last, class weights, losses that are compiled,
    and programs that take gradients of gradients. Where the output layer can be fused with its loss
    (`fuse-linear-cross-entropy`), that goes further.
"""

from __future__ import annotations

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.losses.loss_forms import has_losses, losses
from diagnose.source.models.compilation import is_compiled
from diagnose.source.patterns.cross_entropy import CrossEntropy, classes_last
from diagnose.source.rewrite.functional import operand_code
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place
from diagnose.source.tree.edits import Source, Splice, ensure_from_import
from diagnose.source.tree.memo import files_with


def rewrite(request: Request) -> Answer:
    """Replace every one of the program's files whose classes come last."""
    if second_derivative(request.sources) is not None:
        return None
    edits: list[tuple[str, list[Splice]]] = []
    for path, source in files_with(request.sources, where=has_losses):
        for loss in losses(source):
            logits = classes_last(loss) if loss.refused is None else None
            if logits is not None and not is_compiled(request.sources, request.sites, path, source, loss.root):
                edits.append((path, _edits(source, loss, logits)))
    done = "compute the cross entropy in one operator of diagnose.kernels, which the program then needs"
    return request.answer(edits, done)


def _edits(source: Source, loss: CrossEntropy, logits: str) -> list[Splice]:
    (name,), imports = ensure_from_import(source, "diagnose.kernels", ["cross_entropy"])
    targets = f"{operand_code(source, loss.targets)}.flatten()" if loss.column else source.code(loss.targets)
    arguments = [logits, targets, *(f"{option}={code}" for option, code in loss.keywords)]
    gone = take_out(source, [statement for statement, _ in loss.steps])
    return [*imports, *call_in_place(source, loss.root, name, arguments), *gone]


def _recorded(text: str) -> Request:
    return example_request("unfused-loss", text)


def _example(before: str, after: str | None) -> Example:
    head = "import torch.nn.functional as F\n"
    imported = "from diagnose.kernels import cross_entropy\n"
    rest = "\n\ndef loss_of(logits, y):\n"
    return Example(head + rest + before, head + imported + rest + after if after is not None else None, _recorded)


FIXER = Fixer(
    name="fuse-cross-entropy",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=59,
    conflicts=("compile-model", "fuse-linear-cross-entropy"),
    after=("fuse-linear-cross-entropy",),
    examples=(
        _example(
            "    return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=0)\n",
            "    return cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=0)\n",
        ),
        _example(
            "    return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())\n",
            "    return cross_entropy(logits.flatten(0, 1), y.flatten())\n",
        ),
        _example(
            "    return F.cross_entropy(logits.transpose(1, 2), y, label_smoothing=0.1)\n",
            "    return cross_entropy(logits, y, label_smoothing=0.1)\n",
        ),
        _example(
            "    log_p = F.log_softmax(logits.float(), dim=-1)\n    return -log_p.gather(-1, y.unsqueeze(-1)).mean()\n",
            "    return cross_entropy(logits, y)\n",
        ),
        _example(
            "    log_p = F.log_softmax(logits, -1)\n    return -log_p.gather(-1, y[..., None]).mean(), log_p\n", None
        ),
        _example("    return F.cross_entropy(logits, y)\n", None),
        _example("    return F.cross_entropy(logits.view(-1, 9), y.view(-1), weight=W)\n", None),
        _example("    rows = logits.transpose(1, 2)\n    return F.cross_entropy(rows, y), rows\n", None),
        _example("    return F.cross_entropy(logits.view(-1, 9), y.view(-1))\n\n\nmodel.compile()\n", None),
    ),
)
