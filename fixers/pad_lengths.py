"""Pads batches to a few lengths, so that code compiled for one length serves many batches.

What it changes
    `pad_to_multiple_of=64` where the program builds one of the collators of Hugging Face's transformers, which pad
    each batch to its longest text. What they add is masked: it reaches neither attention nor the loss.

Why it helps
    Every new length is a new shape: compiled code is compiled again, kernels are chosen again, CUDA graphs are recorded
    again. Rounded up to multiples of 64 a corpus has a dozen lengths instead of hundreds, and products of matrices
    with such sizes fill the tensor cores.

Fix safety
    Rounding: sums over masked positions add zeros. Left alone, with advice: collators of the program's own, since
    whether a mask covers what would be added, everywhere, cannot be read from them.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.tree.arguments import argument, has_star, set_keywords
from diagnose.source.tree.edits import call_name, parse

_MULTIPLE = 64
_COLLATORS = frozenset(
    {
        "DataCollatorWithPadding",
        "DataCollatorForSeq2Seq",
        "DataCollatorForLanguageModeling",
        "DataCollatorForTokenClassification",
    }
)
_OWN = re.compile(r"\bpad_sequence\(|padding\s*=\s*(?:True\b|[\"']longest)")


def rewrite(request: Request) -> Answer:
    """Let the collator round lengths up."""
    own: str | None = None
    for path, text in request.sources.items():
        source = parse(text)
        if source is None:
            continue
        for call in source.every(cst.Call):
            resolved = {name.rpartition(".")[2] for name in source.names(call.func)} | {call_name(call)}
            if not resolved & _COLLATORS:
                continue
            if argument(call, "pad_to_multiple_of") is not None:
                return None
            padding = argument(call, "padding")
            if has_star(call) or (padding is not None and source.code(padding.value) not in {"True", '"longest"'}):
                return Advice(f"{path} decides on the padding elsewhere: set pad_to_multiple_of={_MULTIPLE} there.")
            edits = [(path, set_keywords(source, call, {"pad_to_multiple_of": str(_MULTIPLE)}))]
            return Edits(request.edited(edits), f"pad batches to multiples of {_MULTIPLE}")
        found = _OWN.search(text)
        if own is None and found is not None:
            own = f"{path}:{text[: found.start()].count(source.newline) + 1}"
    if own is None:
        return None
    return Advice(
        f"{own} pads each batch to its longest: round that length up to a multiple of {_MULTIPLE}, and mask what is "
        "added. Not by us: the numbers stay the same only if the mask covers it in attention, norms and loss."
    )


_HF = "from transformers import DataCollatorWithPadding\n"


def _recorded(text: str) -> Request:
    return example_request("recompiling", text)


FIXER = Fixer(
    name="pad-lengths",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="idle.compile",
    order=30,
    examples=(
        Example(
            _HF + "collate = DataCollatorWithPadding(tokenizer)  # longest\n",
            _HF + "collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)  # longest\n",
            _recorded,
        ),
        Example(_HF + "collate = DataCollatorWithPadding(tokenizer, padding='max_length')\n", None, _recorded),
        Example(_HF + "collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)\n", None, _recorded),
        Example("def collate(rows):\n    return pad_sequence(rows, batch_first=True)\n", None, _recorded),
        Example("loader = DataLoader(texts, batch_size=8)\n", None, _recorded),
    ),
)
