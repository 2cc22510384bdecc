"""Tells the compiler that sizes change, so that one compilation serves all of them.

What it changes
    `dynamic=True` in the call of torch.compile whose function is compiled again and again for new sizes;
    `dynamic=False` gives way.

Why it helps
    Code compiled for one size is good for that size alone: each new one costs a compilation of seconds to minutes, and
    after eight of them the function runs uncompiled. Code for changing sizes is compiled once.

Fix safety
    Rounding: kernels for any size may sum in another order than those for one size. They may also be a little slower:
    the trial weighs it. Left alone, with advice: guards that fail for other reasons than a size, code that is recorded
    as CUDA graphs, and programs in which the call that compiles the function is not found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    Request,
    Scalar,
    Site,
    example_request,
    word_diffs,
)
from diagnose.source.models.compilation import Compiled, compilations
from diagnose.source.tree.arguments import argument, has_star, set_keywords
from diagnose.source.tree.edits import Splice

_SIZES = re.compile(r"size mismatch|shape|stride mismatch|\.size\(|Ne\(|Eq\(|==.*\bs\d+\b", re.IGNORECASE)
_BY_HAND = "TORCH_LOGS=recompiles names the guard that fails."


def rewrite(request: Request) -> Answer:
    """Let the function that is compiled again take any size."""
    again = [site for site in request.sites if site.kind == "recompile"]
    reasons = [str(site.arguments.get("reason") or "") for site in again]
    if reasons and not any(_SIZES.search(reason) for reason in reasons):
        return Advice(f"It is compiled again for another reason than a size: {reasons[0]}. Keep that value the same.")
    present = compilations(request.sources)
    chosen = _chosen(present, {site.function or "" for site in again})
    if not chosen:
        return Advice(f"The call that compiles the function is not found: pass dynamic=True there. {_BY_HAND}")
    edits: list[tuple[str, Sequence[Splice]]] = []
    for each in chosen:
        call = each.node.decorator if isinstance(each.node, cst.Decorator) else each.node
        if not isinstance(call, cst.Call):  # `@torch.compile` without arguments
            start, end = each.source.span(call)
            edits.append((each.path, [Splice(start, end, f"{each.source.code(call)}(dynamic=True)")]))
            continue
        if has_star(call):
            return Advice(f"{each.path} takes the compiler's options from elsewhere: put dynamic=True there.")
        mode = argument(call, "mode")
        if mode is not None and each.source.code(mode.value).strip("\"'") not in {"default", "None"}:
            return Advice("Graphs are recorded for each size: pad lengths to a few sizes, or leave the mode out.")
        edits.append((each.path, set_keywords(each.source, call, {"dynamic": "True"})))
    files = {path: text for path, text in request.edited(edits).items() if text != request.sources[path]}
    return Edits(files, "compile once for all sizes") if files else None


def _chosen(present: Sequence[Compiled], functions: set[str]) -> list[Compiled]:
    """The compilations of what is compiled again; the only one, or those for one size, where names do not tell."""
    named = [each for each in present if each.target.rpartition(".")[2] in functions]
    fixed = [each for each in present if _dynamic(each) == "False"]
    if named or len(present) <= 1:
        return named or list(present)
    return fixed if len(fixed) == 1 else []


def _dynamic(compiled: Compiled) -> str | None:
    call = compiled.node.decorator if isinstance(compiled.node, cst.Decorator) else compiled.node
    given = argument(call, "dynamic") if isinstance(call, cst.Call) else None
    return compiled.source.code(given.value) if given is not None else None


_SIZE = "tensor 'x' size mismatch at index 1. expected 64, actual 66"


def _recorded(text: str, reason: str = _SIZE) -> Request:
    named: dict[str, Scalar] = {"reason": reason, "limit": False}
    sites = [Site("recompile", "train.py", 4, function="gated", arguments=named)]
    return example_request("recompiling", text, sites=sites, lines=[4])


_GATED = "import torch\n\n\ndef gated(x):\n    return x + 1\n\n\n"


FIXER = Fixer(
    name="mark-dynamic",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="idle.compile",
    order=60,
    examples=(
        *word_diffs(
            _recorded,
            _GATED + "activation = torch.compile(gated, dynamic={-False-}{+True+}, fullgraph=True)\n",
            _GATED + "other = torch.compile(head)\nactivation = torch.compile(gated{+, dynamic=True+})  # fast\n",
        ),
        Example(
            _GATED.replace("def", "@torch.compile\ndef"),
            _GATED.replace("def", "@torch.compile(dynamic=True)\ndef"),
            _recorded,
        ),
        Example("import torch\nmodel.compile()\n", "import torch\nmodel.compile(dynamic=True)\n", _recorded),
        Example(_GATED + "activation = torch.compile(gated, mode='reduce-overhead')\n", None, _recorded),
        Example(_GATED + "activation = torch.compile(gated, **options)\n", None, _recorded),
        Example(_GATED + "a, b = torch.compile(one), torch.compile(two)\n", None, _recorded),
        Example(_GATED, None, _recorded),
        Example(
            _GATED + "activation = torch.compile(gated)\n",
            None,
            lambda text: _recorded(text, "L['self'].epoch == 3"),
        ),
    ),
)
