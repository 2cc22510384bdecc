"""Lets torch's own kernel compute a GELU or SiLU that the program writes out.

What it changes
    `0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))`, however it is written, becomes
    `F.gelu(x, approximate="tanh")`; the form with `torch.erf` becomes `F.gelu(x)`; `x * torch.sigmoid(x)` becomes
    `F.silu(x)`.

Why it helps
    Written out, each of up to eight operators reads and writes the whole tensor, and most keep one for the backward
    pass. The kernel reads it once and writes it once, and keeps the input alone.

Fix safety
    Rounding: the same formula, in one piece. The two forms of GELU differ by up to 5e-4 and are told apart. Left
    alone: the sigmoid form, `x * torch.sigmoid(1.702 * x)`, which is neither; constants with fewer digits than float32
    has, such as 0.7071 for the root of one half, with which it is another function; and arguments that are calls,
    which may give another value each time. Modules that the run did not build stay as they are: nothing would check
    them.
"""

from __future__ import annotations

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request
from diagnose.source.patterns.activations import may_hold_activations, written_activations
from diagnose.source.rewrite.functional import functional
from diagnose.source.rewrite.leftovers import without_import
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place
from diagnose.source.tree.built_classes import in_class_of, unbuilt_classes
from diagnose.source.tree.edits import Splice
from diagnose.source.tree.memo import parse_all

_NAMES = {"tanh": "gelu", "erf": "gelu", "silu": "silu"}


def rewrite(request: Request) -> Answer:
    """Replace every one of the program's files."""
    edits: list[tuple[str, list[Splice]]] = []
    unbuilt = unbuilt_classes(request.sources, request.sites)
    for path, source in parse_all(request.sources).items():
        if not may_hold_activations(source):
            continue
        splices: list[Splice] = []
        for found in written_activations(source):
            assert found.input is not None
            if in_class_of(source, found.root, path, unbuilt):
                continue  # no run would check it
            name, imports = functional(source)
            arguments = [source.code(found.input), *(['approximate="tanh"'] if found.kind == "tanh" else [])]
            splices += [*imports, *call_in_place(source, found.root, f"{name}.{_NAMES[found.kind]}", arguments)]
            splices += take_out(source, [statement for statement, _ in found.steps])
        edits.append((path, without_import(source, splices, "math")))
    return request.answer(edits, "compute activations in one kernel each")


def _recorded(text: str) -> Request:
    return example_request("unfused-pointwise", text)


def _example(before: str, after: str | None) -> Example:
    def whole(body: str) -> str:
        needs_math = "import math\n" if "math." in body else ""
        return needs_math + f"import torch\nfrom torch.nn import functional as F\n\n\ndef act(x):\n{body}"

    return Example(whole(before), whole(after) if after is not None else None, _recorded)


FIXER = Fixer(
    name="native-gelu",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=50,
    lines_of=("unfused-pointwise",),
    examples=(
        _example(
            "    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))\n",
            '    return F.gelu(x, approximate="tanh")\n',
        ),
        _example(
            "    cdf = 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))\n    return x * cdf\n",
            "    return F.gelu(x)\n",
        ),
        _example("    return x * 0.5 * (1.0 + (x * 0.70710678).erf())\n", "    return F.gelu(x)\n"),
        _example(
            "    return 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))  # new\n",
            '    return F.gelu(x, approximate="tanh")  # new\n',
        ),
        _example("    return x * torch.sigmoid(x)\n", "    return F.silu(x)\n"),
        _example("    return x * torch.sigmoid(1.702 * x)\n", None),
        _example("    return x * 0.5 * (1.0 + (x * 0.7071).erf())\n", None),
        _example("    return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.1 * x ** 3)))\n", None),
        _example("    g = torch.sigmoid(x)\n    y = x * g\n    return y, g\n", None),
        _example("    return draw() * torch.sigmoid(draw())\n", None),
    ),
)
