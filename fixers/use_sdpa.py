"""Lets one fused kernel compute attention that the program writes out.

What it changes
    `softmax(q @ k.transpose(-2, -1) * scale + mask) @ v`, however it is written (`matmul`, `bmm`, `einsum`, over
    several statements), becomes `F.scaled_dot_product_attention(q, k, v, …)`. A mask that is provably causal (`tril`
    of ones, a buffer that holds it) becomes `is_causal=True`, and `is_causal=q.size(-2) > 1` where a caller may pass
    one query for many keys; any other is passed as `attn_mask`. A scale that is not the kernel's own 1/√width is
    passed as `scale`. Statements that made scores, weights or a causal mask go.
    Where Hugging Face's models are asked for `attn_implementation="eager"`, they are asked for `"sdpa"`.

Why it helps
    Written out, scores and weights are length × length numbers for each head, and every operator reads and writes
    them all. The fused kernel never writes them to memory, forward or backward, and skips what a causal mask hides.

Fix safety
    Rounding: the same mathematics with sums in another order. Where weights are dropped at random, the fused kernel
    draws other numbers: that changes the training, and is tried only if it is allowed. Left alone: attention whose
    scores or weights are used elsewhere or returned (no fused kernel has them), a branch beside one that calls the
    fused kernel already, masks and scales that are not understood. With a finite fill value
    a row of which nothing is seen has even weights: there the query is made zero and sees all, which says the same.
    A mask that is added says so by no such row: where its numbers leave nothing of the scores, `-1e9` or the least of
    a format, fused kernels would get the gradients of the row wrong, and it is left alone.
    Left alone are also softmax and dropout modules in a program with forward hooks, and programs that take second
    derivatives. A buffer that holds a mask stays, for old checkpoints. Modules that the run did not build stay as they
    are: nothing would check them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.patterns.attention import CannotFuse, Refused, WrittenAttention, mentions_fused, written_attentions
from diagnose.source.patterns.attention_call import fused_call
from diagnose.source.patterns.formula import constant
from diagnose.source.rewrite.functional import functional
from diagnose.source.rewrite.hooks import forward_hook
from diagnose.source.rewrite.leftovers import unread_after, without_import
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import call_in_place, comments_above
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import set_from_outside
from diagnose.source.tree.built_classes import in_class_of, unbuilt_classes
from diagnose.source.tree.edits import Source, Splice, free_name, insert_before, replace
from diagnose.source.tree.memo import files_with, parse_all
from diagnose.source.tree.text_lines import any_matches

_DROPS_NOTHING = re.compile(
    r"\b(Llama|Mistral|Qwen|Gemma)\w*|(attn_pdrop|attention_dropout|attention_probs_dropout_prob)=0"
)
"""Models of the library whose attention drops no weights unless told to, and how others are told not to."""

_SHAPES = re.compile(r"#\s*[(\[][^()\[\]]*[)\]]\s*(?:x|@|\*|×|,)\s*[(\[][^()\[\]]*[)\]]\s*[-=]+>\s*([(\[].*[)\]])\s*")


def rewrite(request: Request) -> Answer:
    """Replace every attention of the program's files that can be replaced."""
    for told in _of_library(request):
        return told
    edits: list[tuple[str, list[Splice]]] = []
    reasons: list[str] = []
    drops = False
    twice, hooked = second_derivative(request.sources), forward_hook(request.sources)
    unbuilt = unbuilt_classes(request.sources, request.sites)
    for path, source in files_with(request.sources, where=lambda text: "softmax" in text.lower()):
        splices: list[Splice] = []
        for found in written_attentions(source):
            node = found.node if isinstance(found, Refused) else found.product
            if in_class_of(source, node, path, unbuilt):
                continue  # no run would check it
            if isinstance(found, Refused):
                reasons.append(f"{path}:{source.lines_of(found.node)[0]}: {found.reason}.")
                continue
            where = f"{path}:{source.lines_of(found.product)[0]}"
            if mentions_fused(source, found.product):
                reasons.append(f"{where}: the fused kernel is in the other branch.")
                continue
            if twice is not None:
                reasons.append(f"{where}: {twice} takes derivatives that the fused kernel does not have.")
                continue
            if hooked is not None and found.modules:
                reasons.append(f"{where}: {hooked} hooks modules, and {found.modules[0]} would not be called any more.")
                continue
            try:
                made, random = _edits(source, found, request)
            except CannotFuse as reason:
                reasons.append(f"{where}: {reason}.")
                continue
            splices += made
            drops = drops or random
        edits.append((path, without_import(source, splices, "math")))
    files = request.edited(edits)
    if files:
        summary = "compute attention in one fused kernel" + (", which drops other weights at random" if drops else "")
        return Edits(files, summary, Gate.TRAINING if drops else None)
    if not reasons:
        return None
    return Advice(
        "Attention is written out, but torch's fused kernel cannot simply take its place: " + " ".join(reasons)
    )


def _of_library(request: Request) -> Iterator[Answer]:
    """Yield what to do where the program asks Hugging Face's models to write their attention out."""
    for path, source in files_with(request.sources, "attn_implementation"):
        for call in source.every(cst.Call):
            given = argument(call, "attn_implementation")
            if given is None:
                continue
            setting = request.set_by(given.value, path, source, switch=True)
            if setting is None or setting.value != "eager":
                continue
            if "output_attentions=True" in source.text:
                yield Advice(f"{path} asks for the weights of attention, which no fused kernel has.")
            edits = request.edited([(setting.path, [setting.to("sdpa")])])
            drops = not any_matches(_DROPS_NOTHING, request.sources.values())
            yield Edits(edits, "let the library's attention be one fused kernel", Gate.TRAINING if drops else None)


def _edits(source: Source, found: WrittenAttention, request: Request) -> tuple[list[Splice], bool]:
    _check_kept_as_built(found, request.sources)
    call = fused_call(found, request.sources)
    name, imports = functional(source)
    fused = f"{name}.scaled_dot_product_attention"
    *comments, called = call_in_place(source, found.product, fused, call.arguments, call.after)
    splices = [*imports, *comments, called]
    statement = source.statement(found.product)
    in_rows = source.newline in called.text
    if in_rows and isinstance(statement, cst.SimpleStatementLine) and not _is_value(source, found):
        attended = free_name(source, "attended")
        row = f"{fused}({', '.join(call.arguments)}){call.after}"
        before = insert_before(source, statement, [f"{attended} = {row}"])
        comments = comments_above(source, found.product, row)
        splices = [*imports, *comments, before, replace(source, found.product, attended)]
    if isinstance(statement, cst.SimpleStatementLine):
        splices += _result_alone(source, statement)
    gone = [statement for statement, _ in found.steps]
    gone += unread_after(source, call.unneeded, [*gone, found.product])
    return [*splices, *take_out(source, gone)], call.drops


def _check_kept_as_built(found: WrittenAttention, sources: Mapping[str, str]) -> None:
    """Raise CannotFuse for a scale, or a module for dropout, that the program sets from outside of the class."""
    source = found.source
    made = found.dropout
    module = (
        made.node.func if made is not None and made.module is not None and isinstance(made.node, cst.Call) else None
    )
    scales = [each for _, node in found.factors for each in source.every(cst.Attribute, node)]
    for each in (*scales, *([module] if isinstance(module, cst.Attribute) else [])):
        for other in parse_all(sources).values():
            given = list(set_from_outside(other, each.attr.value))
            if each is module:  # a number of that name is a setting
                given = [value for value in given if constant(other, value) is None]
            if given:
                raise CannotFuse(f"{source.code(each)} is set from outside of its class")


def _result_alone(source: Source, statement: cst.SimpleStatementLine) -> list[Splice]:
    """Shorten a comment `# (B, T, T) x (B, T, C) -> (B, T, C)` about the product that goes to the shape of what comes
    out.
    """
    comment = statement.trailing_whitespace.comment
    shapes = _SHAPES.fullmatch(comment.value) if comment is not None else None
    return [replace(source, comment, f"# {shapes[1]}")] if comment is not None and shapes is not None else []


def _is_value(source: Source, found: WrittenAttention) -> bool:
    """Whether the product is all that its statement assigns or returns: a long call may stand there by itself."""
    return isinstance(source.parent(found.product), cst.Assign | cst.Return)


def _recorded(text: str) -> Request:
    return example_request("unfused-attention", text)


def _left_alone(text: str) -> Example:
    return Example(text, None, _recorded)


_IMPORT = "import math\n\nimport torch\nimport torch.nn.functional as F\n\n\n"

FIXER = Fixer(
    name="use-sdpa",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute",
    order=50,
    examples=(
        Example(
            before=_IMPORT + "def attend(q, k, v):\n    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\n"
            "    length = q.size(-2)\n    # nobody sees the future\n"
            "    mask = torch.triu(torch.ones(length, length, dtype=torch.bool, device=q.device), diagonal=1)\n"
            '    return scores.masked_fill(mask, float("-inf")).softmax(dim=-1) @ v  # mixed\n',
            after=_IMPORT.replace("import math\n\n", "") + "def attend(q, k, v):\n    length = q.size(-2)\n"
            "    return F.scaled_dot_product_attention(q, k, v, is_causal=q.size(-2) > 1)  # mixed\n",
            request=_recorded,
        ),
        Example(
            before="import torch\nfrom torch import nn\n\n\nclass Attention(nn.Module):\n"
            "    def __init__(self, width, heads):\n        super().__init__()\n"
            "        self.scale = (width // heads) ** -0.5\n        self.drop = nn.Dropout(0.1)\n\n"
            "    def forward(self, q, k, v, mask=None):\n"
            "        scores = torch.matmul(q, k.transpose(2, 3)) * self.scale\n"
            "        if mask is not None:\n            scores = scores + mask\n"
            "        weights = self.drop(torch.softmax(scores, dim=-1))\n        out = torch.matmul(weights, v)\n"
            "        return out\n",
            after="import torch\nfrom torch import nn\n\n\nclass Attention(nn.Module):\n"
            "    def __init__(self, width, heads):\n        super().__init__()\n"
            "        self.scale = (width // heads) ** -0.5\n        self.drop = nn.Dropout(0.1)\n\n"
            "    def forward(self, q, k, v, mask=None):\n"
            "        out = nn.functional.scaled_dot_product_attention(\n"
            "            q,\n            k,\n            v,\n"
            "            attn_mask=mask,\n"
            "            dropout_p=self.drop.p if self.drop.training else 0.0,\n"
            "            scale=self.scale,\n        )\n"
            "        return out\n",
            request=_recorded,
        ),
        _left_alone("def attend(q, k, v):\n    w = (q @ k.transpose(-2, -1)).softmax(-1)\n    return w @ v, w\n"),
        _left_alone("def attend(q, k, v):\n    return (q @ k.transpose(-2, -1)).softmax(dim=-2) @ v\n"),
        _left_alone(
            "import torch.nn.functional as F\n\ndef attend(q, k, v):\n    if FUSED:\n"
            "        y = F.scaled_dot_product_attention(q, k, v)\n    else:\n"
            "        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v\n    return y\n"
        ),
    ),
)
