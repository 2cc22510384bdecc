"""Computes the scores over a vocabulary of odd size as if it were rounded up to a multiple of 64.

What it changes
    Where the program calls its output layer, `self.head(x)`, the layer's weight is padded with rows of zeros up to a
    multiple of 64 for the product, and the scores of the added rows are cut off again. Parameters, their initial
    values and the shape of what comes out stay what they are.

Why it helps
    Tensor cores are fed by loads of 16 bytes. With 50257 columns rows begin at other addresses, and all three products
    over the vocabulary run on kernels that load element by element, several times slower. Padding copies the weight
    once a step, which is little beside the products.

Fix safety
    Rounding: other kernels, other order of sums. The scores of the added rows never reach the loss: that, the random
    numbers drawn for initial values, checkpoints and the tokenizer's size are why the parameter itself is not made
    larger, as one would do in a new program. The layer's own `forward` is no longer called: programs that hook layers,
    set or replace this one, or hand it to what adapts it are left alone. Scores are a view of a wider tensor, so they
    are not contiguous: `.view(-1, size)` works, `.view(-1)` would not. Left alone: programs that ask for that or for
    the memory of a tensor.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.patterns.vocabulary import OutputLayer, output_layers
from diagnose.source.rewrite.adapted_layers import adaptation
from diagnose.source.rewrite.functional import functional
from diagnose.source.tree.edits import Source, Splice, free_name, insert_before, replace
from diagnose.source.tree.memo import files_with

_ROWS = 64  # 128 bytes in 16 bits, what NVIDIA's matrix multiplication guide aligns to on an A100
_ASKS_LAYOUT = frozenset({"is_contiguous", "stride", "storage_offset", "data_ptr", "storage", "untyped_storage"})


def rewrite(request: Request) -> Answer:
    """Pad at every call of an output layer that training goes through."""
    edits: list[tuple[str, list[Splice]]] = []
    there = False
    for path, source in files_with(request.sources, "Linear"):
        if source.may_call(*_ASKS_LAYOUT):
            return None
        for layer in output_layers(source):
            if layer.size is not None and layer.size % 8 == 0:
                continue
            there = there or f"self.{layer.name}.weight, (0, 0, 0," in source.text
            calls = _in_training(request, path, source, layer)
            adapted = adaptation(request.sources, layer.name, {"torch.nn.Linear"}) if calls else None
            if adapted is not None:
                return Advice(
                    f"Round the vocabulary up to a multiple of 64 by hand: {adapted} hooks or replaces layers, and "
                    f"`{layer.name}` may be one of them."
                )
            edits += [(path, _edits(source, layer, call)) for call in calls]
    files = request.edited(edits)
    if files:
        return Edits(files, f"pad the vocabulary to a multiple of {_ROWS} for the product over it")
    if there or request.finding.rule != "misaligned-matmul":
        return None
    return Advice(
        "A matrix product has an odd size, and no output layer over a vocabulary is found in these files: round the "
        "size up to a multiple of 64 where the layer is built, and mask what the added outputs would do to the loss."
    )


def _in_training(request: Request, path: str, source: Source, layer: OutputLayer) -> list[cst.Call]:
    """The calls on lines that the finding names; without such, all but those for the last position alone."""
    if layer.bias is None:
        return []
    lines = {place.line for place in request.finding.where if place.file == path}
    named = [call for call in layer.calls if source.lines_of(call)[0] in lines]
    return named or [call for call in layer.calls if "-1" not in source.code(call.args[0].value)]


def _edits(source: Source, layer: OutputLayer, call: cst.Call) -> list[Splice]:
    statement = source.statement(call)
    deferred = any(isinstance(above, cst.BaseComp | cst.Lambda) for above in source.ancestors(call))
    if not isinstance(statement, cst.SimpleStatementLine) or deferred:
        return []
    name, imports = functional(source)
    head = f"self.{layer.name}"
    weight = free_name(source, "padded")
    operands = [source.code(call.args[0].value), weight]
    lines = [f"{weight} = {name}.pad({head}.weight, (0, 0, 0, -{head}.out_features % {_ROWS}))  # aligned rows"]
    if layer.bias:
        bias = free_name(source, "padded_bias")
        lines.append(f"{bias} = {name}.pad({head}.bias, (0, -{head}.out_features % {_ROWS}))")
        operands.append(bias)
    code = f"{name}.linear({', '.join(operands)})[..., : {head}.out_features]"
    return [*imports, insert_before(source, statement, lines), replace(source, call, code)]


def _recorded(text: str) -> Request:
    return example_request("misaligned-matmul", text)


_MODEL = (
    "import torch.nn.functional as F\nfrom torch import nn\n\n\nclass GPT(nn.Module):\n"
    "    def __init__(self, vocabulary, width):\n        super().__init__()\n"
    "        self.token = nn.Embedding(vocabulary, width)\n"
    "        self.head = nn.Linear(width, vocabulary, bias={bias})\n\n"
    "    def forward(self, tokens):\n        x = self.token(tokens)\n{rest}"
)
_PADDED = "        padded = F.pad(self.head.weight, (0, 0, 0, -self.head.out_features % 64))  # aligned rows\n"

FIXER = Fixer(
    name="pad-vocabulary",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute",
    order=50,
    conflicts=("fuse-linear-cross-entropy",),
    after=("fuse-linear-cross-entropy",),
    examples=(
        Example(
            before=_MODEL.format(bias="False", rest="        return self.head(x)\n"),
            after=_MODEL.format(
                bias="False",
                rest=_PADDED + "        return F.linear(x, padded)[..., : self.head.out_features]\n",
            ),
            request=_recorded,
        ),
        Example(
            before=_MODEL.format(
                bias="True", rest="        last = self.head(x[:, [-1]])\n        return self.head(x), last\n"
            ),
            after=_MODEL.format(
                bias="True",
                rest="        last = self.head(x[:, [-1]])\n"
                + _PADDED
                + "        padded_bias = F.pad(self.head.bias, (0, -self.head.out_features % 64))\n"
                "        return F.linear(x, padded, padded_bias)[..., : self.head.out_features], last\n",
            ),
            request=_recorded,
        ),
        *word_diffs(
            _recorded,
            _MODEL.format(bias="bias", rest="        return self.head(x)\n"),
            _MODEL.format(bias="False", rest="        return self.head(x)\n")
            .replace("vocabulary)", "50304)")
            .replace("(vocabulary, width)", "(50304, width)")
            .replace("width, vocabulary,", "width, 50304,"),
            _MODEL.format(bias="False", rest="        return self.head(x)\n")
            + "\n\nassert GPT(5, 4)(tokens).is_contiguous()\n",
            _MODEL.format(bias="False", rest="        return self.head(x)\n")
            + "\n\nsetattr(model, name, Adapter(child))\n",
            _MODEL.format(bias="False", rest="        return self.head(x)\n")
            + "\n\nmodel.head.register_forward_hook(watch)\n",
        ),
    ),
)
