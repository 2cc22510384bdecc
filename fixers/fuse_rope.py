"""Lets one operator turn queries and keys by their positions.

What it changes
    `q * cos + rotate_half(q) * sin` and the same for `k`, written out or by a function of the program's own, become
    one call, `q, k = rotary(q, k, cos, sin)` of `diagnose.kernels`. So do the halves turned one by one, and neighbours
    instead of halves.

Why it helps
    Written out, queries and keys are each cut, negated, joined, multiplied twice and added: every step reads and
    writes all of them, and most are kept for the backward pass. The operator reads and writes each once; a rotation's
    gradient is the rotation back, and nothing but cos and sin is kept.

Fix safety
    Rounding: the same formula in float32, rounded once to the format of queries and keys. The program then imports
    `diagnose.kernels`, which needs torch, and Triton to be fast, and nothing else: where it runs, this package has to
    be installed. Left alone: rotations of one tensor, those written with complex numbers, and programs that are
    compiled, in which the compiler fuses the steps as well.
"""

from __future__ import annotations

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.patterns.rotary import RotatedPair, rotated_pairs
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place, comments_above, laid_out
from diagnose.source.training.compilation import is_compiled
from diagnose.source.tree.edits import Source, Splice, ensure_from_import, parse


def rewrite(request: Request) -> Answer:
    """Replace every pair of the program's files."""
    if second_derivative(request.sources) is not None:
        return None
    edits: list[tuple[str, list[Splice]]] = []
    for path, text in request.sources.items():
        source = parse(text) if "cos" in text and "sin" in text else None
        for found in rotated_pairs(source) if source is not None else ():
            assert source is not None  # it has a pair
            if not is_compiled(request.sources, request.sites, path, source, found.first.root):
                edits.append((path, _edits(source, found)))
    done = "turn queries and keys in one operator of diagnose.kernels, which the program then needs"
    return Edits(request.edited(edits), done) if edits else None


def _edits(source: Source, found: RotatedPair) -> list[Splice]:
    (name,), imports = ensure_from_import(source, "diagnose.kernels", ["rotary"])
    first, second = found.first, found.second
    arguments = [first.turned, second.turned, first.cos, first.sin]
    arguments += ["interleaved=True"] if first.interleaved else []
    if found.whole is not None:
        return [*imports, *call_in_place(source, found.whole, name, arguments)]
    assert found.statements is not None  # it is the one or the other
    one, other = found.statements
    code = f"{', '.join(found.names)} = {laid_out(source, first.root, name, arguments)}"
    kept = comments_above(source, one, code)
    return [*imports, *kept, Splice(*source.span(one), code), *take_out(source, [other])]


def _recorded(text: str) -> Request:
    return example_request("unfused-pointwise", text)


_TURN = (
    "def rotate_half(x):\n    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]\n"
    "    return torch.cat((-x2, x1), dim=-1)\n\n\n"
)
_PAIR = "def apply_rotary(q, k, cos, sin):\n"


def _example(before: str, after: str | None) -> Example:
    imported = "import torch\nfrom diagnose.kernels import rotary\n\n\n"
    return Example("import torch\n\n\n" + before, imported + after if after is not None else None, _recorded)


FIXER = Fixer(
    name="fuse-rope",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=65,
    conflicts=("compile-model",),
    after=("compile-model",),
    lines_of=("unfused-pointwise",),
    examples=(
        _example(
            _TURN + _PAIR + "    q_embed = (q * cos) + (rotate_half(q) * sin)\n"
            "    k_embed = (k * cos) + (rotate_half(k) * sin)\n    return q_embed, k_embed\n",
            _TURN + _PAIR + "    q_embed, k_embed = rotary(q, k, cos, sin)\n    return q_embed, k_embed\n",
        ),
        _example(
            "def turn(x, cos, sin):\n    x1, x2 = x.chunk(2, dim=-1)\n"
            "    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)\n\n\n"
            "q, k = turn(q, cos[:9], sin[:9]), turn(k, cos[:9], sin[:9])\n",
            "def turn(x, cos, sin):\n    x1, x2 = x.chunk(2, dim=-1)\n"
            "    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)\n\n\n"
            "q, k = rotary(q, k, cos[:9], sin[:9])\n",
        ),
        _example(_TURN + "y = x * cos + rotate_half(x) * sin\n", None),
        _example(
            _TURN.replace("(-x2, x1)", "(x2, x1)")
            + _PAIR
            + "    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin\n",
            None,
        ),
        _example(_TURN + _PAIR + "    return q * cos + rotate_half(q) * sin, k * sin + rotate_half(k) * cos\n", None),
        _example(
            _PAIR + "    return torch.view_as_real(q * cos).flatten(3), torch.view_as_real(k * sin).flatten(3)\n", None
        ),
    ),
)
