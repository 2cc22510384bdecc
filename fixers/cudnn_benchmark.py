"""Lets cuDNN try its algorithms for each convolution and keep the fastest.

What it changes
    Sets `torch.backends.cudnn.benchmark = True` once, after the imports of the script that is started. Where the
    program sets it to False, that line is edited instead.

Why it helps
    cuDNN guesses an algorithm from the sizes of a convolution. For grouped, dilated, three-dimensional and odd ones
    the guess is often a general engine without tensor cores. A search, once for each new size, finds the best one.

Fix safety
    Rounding: another algorithm adds in another order, and which one is found can differ from run to run. Left alone:
    programs that ask for deterministic algorithms, where that is in effect or may be, and programs that read the
    setting, to print it say. The first step with each new size takes longer; for images whose sizes keep changing the
    search costs more than it gives, and the trial tells.
"""

from __future__ import annotations

import re

import libcst as cst
from libcst.helpers import get_full_name_for_node

from diagnose.fixer import Advice, Answer, Example, Facts, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.settings.process_settings import why_not_set
from diagnose.source.tree.edits import Source, Splice, parse, set_in_torch
from diagnose.source.tree.text_lines import any_matches, matches

_SETTING = "backends.cudnn.benchmark"
_SUMMARY = "let cuDNN search for its fastest algorithms"
_DETERMINISTIC = re.compile(r"cudnn\.deterministic\s*=\s*True|use_deterministic_algorithms\(\s*True")
_LIGHTNING = re.compile(r"\bTrainer\([^)]*\b(?:benchmark|deterministic)\s*=")


def rewrite(request: Request) -> Answer:
    """Turn the search on where the program decides on it, or at the top of the script."""
    facts = request.facts
    if facts.cudnn_benchmark:
        return None
    if facts.cudnn_deterministic or facts.deterministic:
        return Advice("The program asks for deterministic algorithms: without that, cuDNN may search for faster ones.")
    asks = any_matches(_DETERMINISTIC, request.sources.values())
    if asks and facts.cudnn_deterministic is None:
        return Advice("The program can ask for deterministic algorithms: decide there on cudnn.benchmark.")
    read = why_not_set(request.sources, f"`torch.{_SETTING}`", "cudnn.benchmark")
    if read is not None:
        return Advice(read)
    for path, text in request.sources.items():
        if matches(_LIGHTNING, text):
            return Advice(f"{path} gives its Trainer `benchmark` or `deterministic`: decide there.")
        source = parse(text) if "benchmark" in text else None
        decided = _decided(source, asks) if source is not None else False
        if isinstance(decided, Splice):
            return request.answer([(path, [decided])], _SUMMARY)
        if decided:
            return None
    return _insert(request)


def _decided(source: Source, asks: bool) -> Splice | bool:
    """The edit of the one line that forbids the search; True: another line decides; False: none does."""
    known_as = {"benchmark", *source.imported_as("benchmark")}
    for assign in source.every(cst.Assign):
        target = assign.targets[0].target
        last = (get_full_name_for_node(target) or "").rpartition(".")[2]
        if last not in known_as or not any(name.endswith("cudnn.benchmark") for name in source.names(target)):
            continue
        if source.code(assign.value) != "False":
            return True
        if not asks:  # beside a request for deterministic algorithms, in a branch not taken, it belongs to that
            return Splice(*source.wide_span(assign.value), "True")
    return False


def _insert(request: Request) -> Answer:
    source = parse(request.sources.get(request.entry or "", ""))
    edits = [(request.entry or "", set_in_torch(source, f"{_SETTING} = True"))] if source is not None else []
    by_hand = f"Put `torch.{_SETTING} = True` before the first step; the script that starts is not ours to edit."
    return request.answer(edits, _SUMMARY, reasons=[by_hand])


def _recorded(text: str) -> Request:
    return example_request("conv-heuristics", text, facts=Facts(cudnn_benchmark=False, cudnn_deterministic=False))


FIXER = Fixer(
    name="cudnn-benchmark",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute",
    order=50,
    examples=(
        *word_diffs(
            _recorded,
            (
                "import torch\nfrom torch import nn{+\n\ntorch.backends.cudnn.benchmark = True+}\n\n\ndef main():\n"
                "    pass\n"
            ),
            "import torch\n\ntorch.backends.cudnn.benchmark = {-False-}{+True+}  # for now\n",
            (
                "import torch\nimport torch.backends.cudnn as cudnn{+\n\ntorch.backends.cudnn.benchmark = True+}\n\n"
                "if seed is not None:\n    cudnn.deterministic = True\n    cudnn.benchmark = False\n"
            ),
            "import torch\nimport torch.backends.cudnn as cudnn\n\ncudnn.benchmark = True\n",
        ),
        Example(
            before="import torch\n\ntorch.backends.cudnn.deterministic = True\n",
            after=None,
            request=lambda text: example_request("conv-heuristics", text),
        ),
        Example(
            before="import torch\nx = 1\n",
            after=None,
            request=lambda text: example_request("conv-heuristics", text, facts=Facts(cudnn_benchmark=True)),
        ),
        Example(
            before="import torch\nx = 1\n",
            after=None,
            request=lambda text: example_request("conv-heuristics", text, facts=Facts(deterministic=True)),
        ),
    ),
)
