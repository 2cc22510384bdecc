"""Lets one operator add to the residual stream and normalise the sum.

What it changes
    `x = x + self.attention(h)` and the norm of `x` that follows become one call of `diagnose.kernels`,
    `normed, x = add_rms_norm(self.attention(h), x, …)`, or `add_layer_norm`; `self.norm(x + f(x))` becomes the first of
    the two that such a call returns. Norms may be torch's modules and functions, or classes of the program's own that
    call these.

Why it helps
    The sum is written and read again at once, and in the backward pass its two gradients are added in a pass of their
    own. The operator reads what is added once, and writes sum and norm once.

Fix safety
    Rounding: the same formula, summed in float32 and rounded once. The program then imports `diagnose.kernels`, which
    needs torch, and Triton to be fast, and nothing else: where it runs, this package has to be installed. The norm's
    own `forward` is no longer called: where layers are hooked or adapted, this is left to the user. Left alone too:
    sums whose parts are not seen to have one shape, and programs that are compiled, in which the compiler fuses both.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.patterns.add_norm import NormCall, ResidualNorm, residual_norms
from diagnose.source.rewrite.adapted_layers import adaptation
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place, comments_above, in_place
from diagnose.source.training.compilation import is_compiled
from diagnose.source.tree.edits import Source, Splice, ensure_from_import, free_name, parse

_BY_HAND = "Add to the residual stream and normalise with `diagnose.kernels.{}` by hand: {} hooks or replaces layers."


def rewrite(request: Request) -> Answer:
    """Replace every pair of the program's files."""
    if second_derivative(request.sources) is not None:
        return None
    edits: list[tuple[str, list[Splice]]] = []
    for path, text in request.sources.items():
        source = parse(text) if "norm" in text.lower() else None
        if source is None:
            continue
        pairs = [
            one
            for one in residual_norms(source)
            if not is_compiled(request.sources, request.sites, path, source, one.norm.root)
        ]
        for pair in pairs:
            name = source.code(pair.norm.root.func).rpartition(".")[2]
            adapted = adaptation(request.sources, name, {"torch.nn.LayerNorm", "torch.nn.RMSNorm"})
            if adapted is not None:
                return Advice(_BY_HAND.format(_operator(pair.norm), adapted))
        if pairs:
            names, imports = ensure_from_import(source, "diagnose.kernels", [_operator(one.norm) for one in pairs])
            made = [edit for one, name in zip(pairs, names, strict=True) for edit in _edits(source, one, name)]
            edits.append((path, [*imports, *made]))
    done = "add and normalise in one operator of diagnose.kernels, which the program then needs"
    return Edits(request.edited(edits), done) if edits else None


def _operator(norm: NormCall) -> str:
    return f"add_{norm.kind}_norm"


def _edits(source: Source, found: ResidualNorm, operator: str) -> list[Splice]:
    stream = source.code(found.stream)
    options = [stream, *_options(found.norm)]
    if found.name is None:
        return call_in_place(source, found.norm.root, operator, [source.code(found.branch), *options], "[0]")
    small, total = found.user.body[0], found.name
    target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
    if isinstance(target, cst.Name) and isinstance(small, cst.Assign) and small.value is found.norm.root:
        normed, gone = target.value, [found.user]
        if normed == total and found.alias is not None:
            gone, total = [found.alias[0], found.user], found.alias[1]
        elif normed == total:
            total = "_"
        rest = take_out(source, gone)
    else:
        normed = free_name(source, "normed")
        rest = in_place(source, found.norm.root, normed)
    return [*_around(source, found, f"{normed}, {total} = {operator}(", options), *rest]


def _around(source: Source, found: ResidualNorm, head: str, options: list[str]) -> list[Splice]:
    """The statement of the sum as a call, with the code of the branch left where it stands: it may be edited too."""
    start, end = source.span(found.statement)
    first, last = source.wide_span(found.branch)
    kept = comments_above(source, found.statement, source.text[first:last])
    row = f"{source.indent(found.statement)}{head}{source.text[first:last]}, {', '.join(options)})"
    if len(row) <= source.line_limit or "\n" in source.text[first:last]:
        return [*kept, Splice(start, first, head), Splice(last, end, f", {', '.join(options)})")]
    inner = source.indent(found.statement) + source.indentation
    lines = "".join(f"{source.newline}{inner}{option}," for option in options)
    tail = f",{lines}{source.newline}{source.indent(found.statement)})"
    return [*kept, Splice(start, first, f"{head}{source.newline}{inner}"), Splice(last, end, tail)]


def _options(norm: NormCall) -> list[str]:
    """Weight, bias and ε as the operators take them."""
    if norm.kind == "rms":
        return [norm.weight or "None", norm.eps]
    return [norm.weight or "None", norm.bias or "None", norm.eps]


def _recorded(text: str) -> Request:
    return example_request("unfused-pointwise", text)


_BLOCK = (
    "import torch.nn.functional as F\n{imports}from torch import nn\n\n\nclass Block(nn.Module):\n"
    "    def __init__(self, width):\n        super().__init__()\n"
    "        self.norm1 = nn.RMSNorm(width, eps=1e-6)\n        self.norm2 = nn.{kind}\n"
    "        self.attn = nn.Linear(width, width)\n        self.mlp = nn.Linear(width, width)\n\n"
    "    def forward(self, x):\n{body}"
)


def _example(before: str, after: str | None, operator: str = "add_rms_norm") -> Example:
    kind = "LayerNorm(width)" if operator == "add_layer_norm" else "RMSNorm(width, eps=1e-6)"
    fixed = _BLOCK.format(imports=f"from diagnose.kernels import {operator}\n", kind=kind, body=after)
    return Example(_BLOCK.format(imports="", kind=kind, body=before), fixed if after is not None else None, _recorded)


_PRE = "        x = x + self.attn(self.norm1(x))\n        x = x + self.mlp(self.norm2(x))\n        return x\n"

FIXER = Fixer(
    name="fuse-add-norm",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=65,
    conflicts=("compile-model",),
    after=("native-norm", "compile-model"),
    examples=(
        _example(
            _PRE,
            "        normed, x = add_rms_norm(self.attn(self.norm1(x)), x, self.norm2.weight, self.norm2.eps)\n"
            "        x = x + self.mlp(normed)\n        return x\n",
        ),
        _example(
            "        x += self.attn(self.norm1(x))\n        h = self.norm2(x)\n        return x + self.mlp(h)\n",
            "        h, x = add_layer_norm(\n            self.attn(self.norm1(x)),\n            x,\n"
            "            self.norm2.weight,\n            self.norm2.bias,\n            self.norm2.eps,\n        )\n"
            "        return x + self.mlp(h)\n",
            "add_layer_norm",
        ),
        _example(
            "        return self.norm2(x + self.mlp(x))\n",
            "        return add_layer_norm(self.mlp(x), x, self.norm2.weight, self.norm2.bias, self.norm2.eps)[0]\n",
            "add_layer_norm",
        ),
        _example("        x = x + self.position\n        return self.mlp(self.norm2(x))\n", None),
        _example("        x = x + self.attn(x)\n        y = x.relu()\n        return y + self.norm2(x)\n", None),
        _example("        x = x - self.attn(x)\n        return self.norm2(x)\n", None),
        _example(_PRE + "\n\nmodel.norm2.register_forward_hook(watch)\n", None),
        _example(_PRE + "\n\nmodel.compile()\n", None),
    ),
)
