"""Lets torch's own kernel compute a normalisation that the program writes out.

What it changes
    `x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight`, however it is written, becomes `F.rms_norm`;
    `(x - mean) / torch.sqrt(variance + eps) * weight + bias` with the biased variance becomes `F.layer_norm`. Changes
    of format in between go: the kernels compute in float32 inside. The class, its parameters and its checkpoint stay.

Why it helps
    Written out, each of about eight operators reads and writes the whole tensor, forward and backward. The kernel
    reads it once and writes it once.

Fix safety
    Rounding: the same formula in another order; in 16 bits it is rounded once, at the end, and not after every
    operator. Left alone are the look-alikes: a standard deviation or an unbiased variance, an ε outside the root
    or added to a norm, statistics over other axes, values that are used elsewhere; and, with advice, programs that
    take derivatives of derivatives: the third one of `F.layer_norm` is wrong, without an error. Modules that the run
    did not build stay as they are: nothing would check them.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.patterns.norms import written_norms
from diagnose.source.patterns.written_norm import WrittenNorm, may_hold_norms
from diagnose.source.rewrite.functional import functional
from diagnose.source.rewrite.leftovers import unread_after
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place
from diagnose.source.tree.built_classes import in_class_of, unbuilt_classes
from diagnose.source.tree.edits import Source, Splice
from diagnose.source.tree.memo import files_with

_RAISES = ("sqrt", "** 0.5", "**0.5", "pow(0.5)", "** -0.5", "**-0.5", "pow(-0.5)")


def rewrite(request: Request) -> Answer:
    """Replace every normalisation of the program's files."""
    edits: list[tuple[str, list[Splice]]] = []
    twice = second_derivative(request.sources)
    unbuilt = unbuilt_classes(request.sources, request.sites)
    for path, source in files_with(
        request.sources, where=lambda text: "mean(" in text and any(root in text for root in _RAISES)
    ):
        if may_hold_norms(source):
            norms = (found for found in written_norms(source) if not in_class_of(source, found.root, path, unbuilt))
            edits += [(path, _edits(source, found)) for found in norms]  # of the others, no run would check it
    files = request.edited(edits)
    if files and twice is not None:
        return Advice(f"{twice} takes derivatives of derivatives, which kernels of normalisations lack in part.")
    return Edits(files, "compute normalisations in one kernel each") if files else None


def _edits(source: Source, found: WrittenNorm) -> list[Splice]:
    assert found.input is not None and found.eps is not None
    name, imports = functional(source)
    given, eps = source.code(found.input), source.code(found.eps)
    arguments = [f"{given}.{found.widened}()" if found.widened else given]
    if found.weight is not None:
        weight = source.code(found.weight)
        arguments += [f"{weight}.shape", weight]
        arguments += [source.code(found.bias)] if found.bias is not None else []
        arguments += [eps if found.kind == "rms" or found.bias is not None else f"eps={eps}"]
    else:
        arguments += [f"({given}.size(-1),)", f"eps={eps}"]
    function = f"{name}.{'rms' if found.kind == 'rms' else 'layer'}_norm"
    gone: list[cst.CSTNode] = [statement for statement, _ in found.steps]
    gone += unread_after(source, _formats(source, found), [*gone, found.root])
    edits = [*imports, *call_in_place(source, found.root, function, arguments)]
    return [*edits, *take_out(source, gone), *_without_method(source, found)]


def _formats(source: Source, found: WrittenNorm) -> list[tuple[cst.CSTNode, str]]:
    """Statements that keep a format by name, `dtype = x.dtype`."""
    function = source.inside(found.root, cst.FunctionDef)
    kept: list[tuple[cst.CSTNode, str]] = []
    for assign in source.every(cst.Assign, function):
        target, statement = assign.targets[0].target, source.statement(assign)
        if isinstance(target, cst.Name) and source.code(assign.value).endswith(".dtype") and statement is not None:
            kept.append((statement, target.value))
    return kept


def _without_method(source: Source, found: WrittenNorm) -> list[Splice]:
    """The method that held the formula goes where nothing else calls it."""
    method = found.method
    if method is None or source.text.count(f"{method.name.value}(") > 2:
        return []
    start, end = source.span(method)
    start, end = source.line_start(start), source.after_line(end)
    while source.text[end : source.after_line(end)].strip() == "" and end < len(source.text):
        end = source.after_line(end)
    return [Splice(start, end, "")]


def _recorded(text: str) -> Request:
    return example_request("unfused-pointwise", text)


def _left_alone(text: str) -> Example:
    return Example(text, None, _recorded)


_CLASS = (
    "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\nclass Norm(nn.Module):\n"
    "    def __init__(self, width, eps=1e-6):\n        super().__init__()\n        self.eps = eps\n"
    "        self.weight = nn.Parameter(torch.ones(width))\n        self.bias = nn.Parameter(torch.zeros(width))\n\n"
)
_FORWARD = _CLASS + "    def forward(self, x):\n"

FIXER = Fixer(
    name="native-norm",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=50,
    lines_of=("unfused-pointwise",),
    examples=(
        Example(
            before=_FORWARD + "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight\n",
            after=_FORWARD + "        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)\n",
            request=_recorded,
        ),
        Example(
            before=_FORWARD + "        dtype = x.dtype\n        x = x.to(torch.float32)\n"
            "        variance = x.pow(2).mean(-1, keepdim=True)\n        x = x * torch.rsqrt(variance + self.eps)\n"
            "        return self.weight * x.to(dtype)\n",
            after=_FORWARD + "        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)\n",
            request=_recorded,
        ),
        Example(
            before=_CLASS + "    def _norm(self, x):\n"
            "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n\n"
            "    def forward(self, x):\n        output = self._norm(x.float()).type_as(x)\n"
            "        return output * self.weight\n",
            after=_FORWARD + "        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)\n",
            request=_recorded,
        ),
        Example(
            before=_FORWARD + "        mean = x.mean(-1, keepdim=True)\n"
            "        var = x.var(dim=-1, keepdim=True, unbiased=False)\n"
            "        return self.weight * (x - mean) / torch.sqrt(var + self.eps) + self.bias\n",
            after=_FORWARD + "        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)\n",
            request=_recorded,
        ),
        _left_alone(
            _FORWARD + "        mean = x.mean(-1, keepdim=True)\n        std = x.std(-1, keepdim=True)\n"
            "        return self.weight * (x - mean) / (std + self.eps) + self.bias\n"
        ),
        _left_alone(
            _FORWARD + "        mean = x.mean(-1, keepdim=True)\n        var = x.var(-1, keepdim=True)\n"
            "        return self.weight * (x - mean) / torch.sqrt(var + self.eps) + self.bias\n"
        ),
        _left_alone(_FORWARD + "        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * self.weight\n"),
        _left_alone(_FORWARD + "        return x / (x.norm(2, dim=-1, keepdim=True) + 1e-6) * self.weight\n"),
        _left_alone(
            _FORWARD + "        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
            "        self.seen = r\n        return x * r * self.weight\n"
        ),
    ),
)
