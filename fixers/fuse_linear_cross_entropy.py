"""Lets one operator compute output layer and cross entropy, so that the logits are never all held.

What it changes
    Where a model computes `F.cross_entropy(self.head(x).view(…), targets.view(…))`, the layer's input, its weight and
    the targets go to `linear_cross_entropy` of `diagnose.kernels`. Logits that are returned beside the loss become
    None where no caller reads them, and are still made where there are no targets. Where the training step takes the
    loss of what the model returns, the model's `forward` gets a parameter `targets`, with which it returns the loss.
    That goes for a loss that a function of the program's own computes, compiled or not, and for one that is written out
    with `log_softmax`. A compiled loss function is then called no more: the operator runs outside of its graph.

Why it helps
    Of N rows and V classes the logits are N × V numbers, held several times over: by the layer, in single precision by
    the loss, and as their gradient. With a vocabulary of 128 thousand that is more than the rest of many models.
    In chunks a small part exists at a time. The products are the same ones, but over a vocabulary of odd size: there
    they are cut at the last multiple of 128, and the few columns that are left are a product of their own.

Fix safety
    Rounding: sums in another order, in float32. The program then imports `diagnose.kernels`, which needs torch, and
    Triton to be fast, and nothing else: where it runs, this package has to be installed. Left alone, with advice:
    logits that somebody reads while training, for an accuracy; class weights; layers that are hooked, wrapped,
    sharded or replaced for themselves, whose own `forward` would no longer be called; models that are called through
    another function (`checkpoint(model, x)`), or compiled by TorchScript. Without: gradients of gradients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.losses.loss_forms import has_losses
from diagnose.source.losses.loss_of_output import LossOfStep, losses_of_steps
from diagnose.source.losses.output_layer import OutputProduct
from diagnose.source.losses.output_loss import OutputLoss, output_losses
from diagnose.source.losses.unused_outputs import reader_of
from diagnose.source.models.compilation import compilations
from diagnose.source.models.model_loss import computes_loss
from diagnose.source.patterns.attention import Refused
from diagnose.source.patterns.cross_entropy import CrossEntropy
from diagnose.source.rewrite.adapted_layers import adaptation
from diagnose.source.rewrite.functional import operand_code
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place, in_place
from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import (
    Source,
    Splice,
    ensure_from_import,
    free_name,
    insert_before,
    parse,
    replace,
    splice,
)
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches, matches

_OPERATOR = "linear_cross_entropy"
_SHARDED = re.compile(r"\bfully_shard\(|\bFullyShardedDataParallel\b|\bFSDP\(|\bdeepspeed\b|\bparallelize_module\(")
_SCRIPTED = re.compile(r"\btorch\.jit\b|\bjit\.(?:script|trace)\b")
_REPLICATED = re.compile(r"\bDataParallel\(")
_IN_GRAPH = (
    "Output layer and loss are not seen together in these files. Where the model has both, `model.compile("
    'backend="diagnose")` finds them in its graph, and puts one operator in their place that never holds all logits.'
)
_BY_HAND = (
    "Give the output layer's input, its weight and the targets to `diagnose.kernels.linear_cross_entropy`, which never "
    "holds all logits."
)


def rewrite(request: Request) -> Answer:
    """Replace the loss wherever nobody else needs its logits."""
    if second_derivative(request.sources) is not None:
        return None
    edits: list[tuple[str, Sequence[Splice]]] = []
    reasons: list[str] = []
    for path, source in files_with(request.sources, where=has_losses):
        for found in output_losses(source):
            reason = found.reason if isinstance(found, Refused) else _against(request, path, source, found)
            if isinstance(found, OutputLoss) and reason is None:
                edits.append((path, _edits(source, found)))
            else:
                node = found.node if isinstance(found, Refused) else found.loss.root
                reasons.append(f"{path}:{source.lines_of(node)[0]}: {reason}.")
    if not edits:
        edits = _in_step(request, reasons)
    if edits:
        return Edits(
            request.edited(edits), f"never hold all logits: {_OPERATOR} of diagnose.kernels, which it then needs"
        )
    if request.finding.rule == "misaligned-matmul":
        return None  # `pad-vocabulary` remains
    if reasons:
        return Advice(f"{_BY_HAND} No edit is made: {reasons[0]}")
    if request.finding.rule != "unfused-loss" or compilations(request.sources):
        return None
    return Advice(_IN_GRAPH if computes_loss(request.sources, request.sites) else _BY_HAND)


def _against(request: Request, path: str, source: Source, found: OutputLoss) -> str | None:
    """Why the logits have to stay."""
    layer = found.product.layer
    reason = _handled(request, layer) if layer is not None else None
    if reason is not None:
        return reason
    decides = _parameter(source, found)
    readers = (reader_of(request.sources, path, source, output, decides) for output in found.outputs)
    reader = next(filter(None, readers), None)
    return f"the logits are returned, and {reader}" if reader is not None else None


def _handled(request: Request, layer: str) -> str | None:
    """Return who else has a hand in the output layer."""
    name = layer.rpartition(".")[2]
    adapted = adaptation(request.sources, name, {"torch.nn.Linear"})
    if adapted is not None:
        return f"{adapted} hooks or replaces layers, and {layer} may be one of them"
    for text in request.sources.values():
        if matches(_SHARDED, text):
            return f"weights are sharded, and {layer} may be a unit of its own"
        if matches(_SCRIPTED, text):
            return "TorchScript cannot compile the fused operator"
    return None


def _parameter(source: Source, found: OutputLoss) -> str | None:
    """The parameter of the function without which no loss is computed."""
    function = source.inside(found.loss.root, cst.FunctionDef)
    around = [above for above in source.ancestors(found.loss.root) if isinstance(above, cst.If)]
    around += [found.branch[0]] if found.branch is not None else []
    optional = {
        each.name.value
        for each in (function.params.params if function is not None else ())
        if each.default is not None and source.code(each.default) == "None"
    }
    for condition in around:
        asked = re.fullmatch(r"(\w+)(?: is (?:not )?None)?", source.code(condition.test))
        if asked is not None and asked[1] in optional:
            return asked[1]
    return None


def _edits(source: Source, found: OutputLoss) -> list[Splice]:
    product, laid = found.product, found.laid
    hidden = operand_code(source, product.hidden)
    hidden = "".join([hidden, *laid.picks, ".flatten(0, -2)" if laid.flat else ""])
    targets = f"{operand_code(source, found.targets)}.flatten()" if found.flat_targets else source.code(found.targets)
    (name,), imports = ensure_from_import(source, "diagnose.kernels", [_OPERATOR])
    arguments = [hidden, product.weight, targets, *_bias(product), *_options(found.loss)]
    edits = [*imports, *call_in_place(source, found.loss.root, name, arguments), *take_out(source, found.gone)]
    if found.made is not None:
        edits += in_place(source, product.node, _otherwise(source, found))
    return edits


def _otherwise(source: Source, found: OutputLoss) -> str:
    """The code of the logits, which are made only where there is no loss."""
    code = source.code(found.product.node)
    if found.branch is None:
        return "None"
    condition, if_true = found.branch
    test = source.code(condition.test)
    if not if_true:
        return f"{code} if {test} else None"
    if test.endswith(" is not None"):
        return f"{code} if {test.removesuffix(' is not None')} is None else None"
    return f"None if {test} else {code}"


def _bias(product: OutputProduct) -> list[str]:
    return [product.bias] if product.bias is not None else []


def _options(loss: CrossEntropy) -> list[str]:
    return [f"{name}={code}" for name, code in loss.keywords]


def _in_step(request: Request, reasons: list[str]) -> list[tuple[str, Sequence[Splice]]]:
    """Hand the targets to the model; why not is added to `reasons`."""
    found = list(losses_of_steps(request.sources, request.sites))
    wanted = [one for _, one in found if isinstance(one, LossOfStep)]
    for path, one in found:
        if isinstance(one, Refused):
            source = parse(request.sources[path])
            assert source is not None  # the loss was found in it
            reasons.append(f"{path}:{source.lines_of(one.node)[0]}: {one.reason}.")
    if len(found) != 1 or len(wanted) != 1:
        reasons += ["the loss is computed in several places."] if len(wanted) > 1 else []
        return []
    one = wanted[0]
    layer = one.forward.product.layer
    reason = _handled(request, layer) if layer is not None else None
    if reason is None and any_matches(_REPLICATED, request.sources.values()):
        reason = "DataParallel gathers what each replica returns, and the loss would be one of several"
    if reason is not None:
        reasons.append(f"{one.path}:{one.source.lines_of(one.root)[0]}: {reason}.")
        return []
    return [(one.path, _called(one)), (one.forward.path, _returning(one))]


def _called(one: LossOfStep) -> list[Splice]:
    """The step: the model is given the targets, and returns the loss."""
    source = one.source
    start, end = source.wide_span(one.call)
    added = set_keywords(source, one.call, {"targets": source.code(one.targets)})
    moved = [Splice(each.start - start, each.end - start, each.text) for each in added]
    called = in_place(source, one.root, splice(source.text[start:end], moved))
    return [*called, *take_out(source, one.gone), *(_without(source, each) for each in one.unused)]


def _without(source: Source, statement: cst.CSTNode) -> Splice:
    """A function goes with its decorators and the blank lines after it."""
    decorators = statement.decorators if isinstance(statement, cst.FunctionDef) else ()
    start, end = source.span(decorators[0] if decorators else statement)[0], source.span(statement)[1]
    start, end = source.line_start(start), source.after_line(end)
    if isinstance(statement, cst.FunctionDef):
        while end < len(source.text) and not source.text[end : source.line_end(end)].strip():
            end = source.after_line(end)
    return Splice(start, end, "")


def _returning(one: LossOfStep) -> list[Splice]:
    """The model: a parameter more, and the loss where it is given."""
    forward = one.forward
    source, product = forward.source, forward.product
    (name,), edits = ensure_from_import(source, "diagnose.kernels", [_OPERATOR])
    statement = source.statement(forward.made or forward.returned)
    assert statement is not None  # a `return` stands in one
    hidden, before = source.code(product.hidden), []
    if not isinstance(product.hidden, cst.Name):
        named = free_name(source, "features")
        before = [f"{named} = {hidden}"]
        edits.append(replace(source, product.hidden, named))
        hidden = named
    arguments = [f"{hidden}.flatten(0, -2)" if one.flat else hidden, product.weight]
    arguments += ["targets.flatten()" if one.flat else "targets"]
    call = f"{name}({', '.join([*arguments, *_bias(product), *_options(one.loss)])})"
    indent = source.indentation
    lines = [*before, "if targets is not None:", f"{indent}return {call}"]
    edits.append(insert_before(source, statement, lines))
    last = forward.function.params.params[-1]
    kind = source.code(last.annotation.annotation) if last.annotation is not None else ""
    plain = bool(kind) and kind.rpartition(".")[2] == "Tensor"
    added = f", targets: {kind} | None = None" if plain else ", targets=None"
    return [*edits, _parameter_after(source, last, added)]


def _parameter_after(source: Source, last: cst.Param, added: str) -> Splice:
    """A parameter after the last one: on a line of its own where that has one."""
    start, end = source.span(last)[0], source.span(last.default or last.annotation or last.name)[1]
    lead = source.text[source.line_start(start) : start]
    closes = source.text[end : source.line_end(end)].lstrip(" \t")
    if not lead.strip() and closes.startswith(",") and closes[1:].split("#")[0].strip() == "":
        at = source.line_end(end)
        return Splice(at, at, f"{source.newline}{lead}{added.removeprefix(', ')},")
    return Splice(end, end, added)


def _recorded(text: str) -> Request:
    return example_request("unfused-loss", text)


def _example(before: str, after: str | None) -> Example:
    def whole(body: str, imports: str = "") -> str:
        return f"import torch\nimport torch.nn as nn\nfrom torch.nn import functional as F\n{imports}\n\n" + body

    kernels = "import torch\nimport torch.nn as nn\nfrom diagnose.kernels import linear_cross_entropy\n"
    fixed = None if after is None else kernels + "from torch.nn import functional as F\n\n\n" + after
    return Example(whole(before), fixed, _recorded)


_MODEL = (
    "class GPT(nn.Module):\n    def __init__(self, vocab, width):\n        super().__init__()\n"
    "        self.wte = nn.Embedding(vocab, width)\n        self.head = nn.Linear(width, vocab, bias=False)\n\n"
)
_NANO = (
    _MODEL + "    def forward(self, idx, targets=None):\n        x = self.wte(idx)\n        if targets is not None:\n"
    "{loss}        else:\n            logits = self.head(x[:, [-1], :])\n            loss = None\n"
    "        return logits, loss\n\n\n"
)
_NANO_LOSS = (
    "            logits = self.head(x)\n"
    "            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)\n"
)
_TRAIN = "for x, y in batches:\n    {names} = model(x, y)\n    loss.backward()\n"
_LECTURE = (
    _MODEL.replace(", bias=False", "")
    + "    def forward(self, idx, targets=None):\n        B, T = idx.shape\n        x = self.wte(idx)\n"
    "        logits = self.head(x){only}\n        if targets is None:\n            loss = None\n        else:\n{loss}"
    "        return logits, loss\n\n\n"
)
_STEP = (
    _MODEL + "    def forward(self, idx{more}):\n        x = self.wte(idx)\n{loss}        return self.head(x)\n\n\n"
    "model = GPT(65, 8)\nfor x, y in batches:\n{step}    loss.backward()\n"
)

_LOSS = (
    "@torch.compile\ndef loss_of(logits, y):\n    log_p = F.log_softmax(logits, -1)\n"
    "    return -log_p.gather(-1, y.unsqueeze(-1)).mean()\n\n\n"
)

FIXER = Fixer(
    name="fuse-linear-cross-entropy",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=58,
    examples=(
        _example(
            _NANO.format(loss=_NANO_LOSS) + _TRAIN.format(names="logits, loss"),
            _NANO.format(
                loss="            logits = None\n            loss = linear_cross_entropy(\n"
                "                x.flatten(0, -2),\n                self.head.weight,\n"
                "                targets.view(-1),\n                ignore_index=-1,\n            )\n"
            )
            + _TRAIN.format(names="logits, loss"),
        ),
        _example(
            _LECTURE.format(
                only="",
                loss="            B, T, C = logits.shape\n            logits = logits.view(B*T, C)\n"
                "            targets = targets.view(B*T)\n            loss = F.cross_entropy(logits, targets)\n",
            )
            + _TRAIN.format(names="_, loss"),
            _LECTURE.format(
                only=" if targets is None else None",
                loss="            loss = linear_cross_entropy(\n                x.flatten(0, -2),\n"
                "                self.head.weight,\n                targets.flatten(),\n"
                "                self.head.bias,\n            )\n",
            )
            + _TRAIN.format(names="_, loss"),
        ),
        _example(
            _STEP.format(
                more="",
                loss="",
                step="    logits = model(x)\n    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())\n",
            ),
            _STEP.format(
                more=", targets=None",
                loss="        if targets is not None:\n            return linear_cross_entropy(x.flatten(0, -2), "
                "self.head.weight, targets.flatten())\n",
                step="    loss = model(x, targets=y)\n",
            ),
        ),
        _example(
            _LOSS + _STEP.format(more="", loss="", step="    loss = loss_of(model(x), y)\n"),
            _STEP.format(
                more=", targets=None",
                loss="        if targets is not None:\n"
                "            return linear_cross_entropy(x, self.head.weight, targets)\n",
                step="    loss = model(x, targets=y)\n",
            ),
        ),
        _example(
            _LOSS.replace("logits, -1", "logits / 2, -1")
            + _STEP.format(more="", loss="", step="    loss = loss_of(model(x), y)\n"),
            None,
        ),
        _example(
            _NANO.format(loss=_NANO_LOSS)
            + _TRAIN.format(names="logits, loss").replace("loss.b", "hits = logits.argmax(-1) == y\n    loss.b"),
            None,
        ),
        _example(
            _STEP.format(
                more="",
                loss="",
                step="    logits = model(x)\n    hits = logits.argmax(-1) == y\n"
                "    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())\n",
            ),
            None,
        ),
        _example(
            _NANO.format(loss=_NANO_LOSS.replace("ignore_index=-1", "weight=seldom"))
            + _TRAIN.format(names="logits, loss"),
            None,
        ),
        _example("def loss_of(logits, y):\n    return F.cross_entropy(logits, y)\n", None),
    ),
)
