"""Lets one operator compute a gated unit, `silu(gate) * up` or `gelu(gate) * up`.

What it changes
    `F.silu(self.gate(x)) * self.up(x)`, also over several lines or with the halves of one projection, becomes `swiglu`
    of `diagnose.kernels`; with GELU in either of its forms it becomes `geglu`.

Why it helps
    The activation writes a tensor that the product reads again, and both keep what they read for the backward pass.
    The operator reads gate and up once, writes once, and keeps those two alone.

Fix safety
    Rounding: the same formula, rounded once. The program then imports `diagnose.kernels`, which needs torch, and
    Triton to be fast, and nothing else: where it runs, this package has to be installed. Left alone: a gate and a
    factor that are not seen to have one shape, and programs that are compiled, in which the compiler fuses both with
    their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.patterns.gated_units import GatedUnit, gated_units
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place
from diagnose.source.training.compilation import is_compiled
from diagnose.source.tree.edits import Source, Splice, ensure_from_import, parse

_OPERATORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "silu": ("swiglu", ()),
    "gelu": ("geglu", ()),
    "gelu_tanh": ("geglu", ('"tanh"',)),
}


def rewrite(request: Request) -> Answer:
    """Replace every one of the program's files."""
    edits: list[tuple[str, list[Splice]]] = []
    if second_derivative(request.sources) is not None:
        return None
    for path, text in request.sources.items():
        source = parse(text) if any(word in text for word in ("silu", "SiLU", "gelu", "GELU")) else None
        if source is None:
            continue
        found = [
            unit
            for unit in gated_units(source, [other for each, other in request.sources.items() if each != path])
            if not is_compiled(request.sources, request.sites, path, source, unit.root)
        ]
        if found:
            edits.append((path, _edits(source, found)))
    done = "compute gated units in one operator of diagnose.kernels, which the program then needs"
    return Edits(request.edited(edits), done) if edits else None


def _edits(source: Source, found: Sequence[GatedUnit]) -> list[Splice]:
    operators = [_OPERATORS[unit.activation][0] for unit in found]
    names, edits = ensure_from_import(source, "diagnose.kernels", operators)
    for unit, name in zip(found, names, strict=True):
        arguments = [source.code(unit.gate), source.code(unit.up), *_OPERATORS[unit.activation][1]]
        edits += call_in_place(source, unit.root, name, arguments)
        edits += take_out(source, [statement for statement, _ in unit.steps])
    return edits


def _recorded(text: str) -> Request:
    return example_request("unfused-pointwise", text)


_UNIT = (
    "import torch.nn.functional as F\n{imports}from torch import nn\n\n\nclass FeedForward(nn.Module):\n"
    "    def __init__(self, width, hidden):\n        super().__init__()\n"
    "        self.gate = nn.Linear(width, hidden)\n        self.up = nn.Linear(width, hidden)\n"
    "        self.down = nn.Linear(hidden, width)\n        self.both = nn.Linear(width, 2 * hidden)\n"
    "        self.act = nn.GELU()\n\n    def forward(self, x):\n{body}"
)


def _example(before: str, after: str | None, operator: str = "swiglu") -> Example:
    fixed = _UNIT.format(imports=f"from diagnose.kernels import {operator}\n", body=after)
    return Example(_UNIT.format(imports="", body=before), fixed if after is not None else None, _recorded)


FIXER = Fixer(
    name="fuse-swiglu",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=65,
    conflicts=("compile-model",),
    after=("native-gelu", "compile-model"),
    lines_of=("unfused-pointwise",),
    examples=(
        _example(
            "        return self.down(F.silu(self.gate(x)) * self.up(x))\n",
            "        return self.down(swiglu(self.gate(x), self.up(x)))\n",
        ),
        _example(
            "        gate, up = self.both(x).chunk(2, dim=-1)\n        gate = F.silu(gate)\n"
            "        return self.down(up * gate)\n",
            "        gate, up = self.both(x).chunk(2, dim=-1)\n        return self.down(swiglu(gate, up))\n",
        ),
        _example(
            "        x, gate = self.both(x).chunk(2, dim=-1)\n        return x * F.gelu(gate, approximate='tanh')\n",
            '        x, gate = self.both(x).chunk(2, dim=-1)\n        return geglu(gate, x, "tanh")\n',
            "geglu",
        ),
        _example(
            "        return self.down(self.act(self.gate(x)) * self.up(x))\n",
            "        return self.down(geglu(self.gate(x), self.up(x)))\n",
            "geglu",
        ),
        _example("        return self.down(F.relu(self.gate(x)) * self.up(x))\n", None),
        _example("        return x * F.silu(self.gate(x).mean(1, keepdim=True))\n", None),
        _example("        return F.silu(self.both(x)) * self.up(x)\n", None),
        _example("        h = F.silu(self.gate(x))\n        return h * self.up(x), h\n", None),
        _example("        return F.silu(self.gate(x)) * self.up(x)\n\n\nmodel.compile()\n", None),
    ),
)
