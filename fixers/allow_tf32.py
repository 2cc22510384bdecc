"""Lets matrix products of float32 use the tensor cores, through TF32.

What it changes
    Calls `torch.set_float32_matmul_precision("high")` once, after the imports of the script that is started. Where
    the program sets the precision itself, to full float32, that line is edited instead; where it uses the newer
    `fp32_precision` settings, the new line does too, since torch refuses to have the two families mixed. Hugging Face's
    Trainer, which sets either, gets `tf32=True`.

Why it helps
    Matrix products of float32 operands run on the plain float units unless they may be rounded to TF32 first: then
    they run on the tensor cores of NVIDIA devices since Ampere, at several times the rate. Sums are still kept in
    float32.

Fix safety
    Rounding. Operands of matrix products keep 10 bits of mantissa instead of 23. The gate compares a step with a
    float64 reference, with operands rounded as TF32 rounds them. A program that asked for "highest" by name may
    have had a reason: the summary says that its own line was edited. A program that reads the precision, to print it
    say, is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.dataflow.flow import chosen_by
from diagnose.source.settings.process_settings import why_not_set
from diagnose.source.tree.edits import Source, Splice, call_name, parse, set_in_torch
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches

_PRECISION = "set_float32_matmul_precision"
_FULL = {'"highest"': '"high"', "'highest'": "'high'"}
_IEEE = {'"ieee"': '"tf32"', "'ieee'": "'tf32'", '"none"': '"tf32"', "'none'": "'tf32'"}
_DECIDES = re.compile(r"set_float32_matmul_precision|allow_tf32|fp32_precision")
_REPRODUCIBLE = re.compile(r"determinis|invarian|reproduc", re.IGNORECASE)
_READ = ("torch.get_float32_matmul_precision", "matmul.allow_tf32", "matmul.fp32_precision", "backends.fp32_precision")
_FIRST_WITH_TENSOR_CORES_FOR_IT = (8, 0)


def rewrite(request: Request) -> Answer:
    """Allow TF32 where the program decides on it, or at the top of the script."""
    facts = request.facts
    if facts.matmul_precision in ("high", "medium"):
        return None
    if facts.device_capability is not None and facts.device_capability < _FIRST_WITH_TENSOR_CORES_FOR_IT:
        return Advice(f"{facts.device_name} has no TF32; autocast to float16 is what its tensor cores can do.")
    for told in _by_trainer(request):
        return told
    read = why_not_set(request.sources, "the precision of matrix products", *_READ)
    if read is not None:
        return Advice(read)
    newer = False
    for path, source in files_with(request.sources, "precision", "allow_tf32"):
        newer = newer or any(node.attr.value == "fp32_precision" for node in source.every(cst.Attribute))
        decided = _decided(source)
        if decided is True:
            return None
        if isinstance(decided, Splice):
            summary = "allow TF32 in matrix products, in the line in which the program forbade it"
            return request.answer([(path, [decided])], summary)
    return _insert(request, newer)


def _by_trainer(request: Request) -> Iterator[Answer]:
    """Yield what to do with the argument of Hugging Face's Trainer, which sets the newer kind of settings itself."""
    trainers = [trainer for trainer in request.trainers() if trainer.knows("tf32")]
    if len(trainers) != 1 or request.facts.device_capability is None:
        return
    options = trainers[0].options
    if options.value("tf32") is True:
        yield None
    elif trainers[0].is_given("tf32") or not any_matches(_DECIDES, request.sources.values()):
        placed = options.place("tf32", True)
        files = request.edited(placed.edits.items())
        yield Edits(files, "let the Trainer allow TF32") if files else Advice(placed.reason or "")


def _decided(source: Source) -> Splice | bool:
    """The edit of a line that forbids TF32 in matrix products; True: a line allows it; False: none decides.

    What a line forbids only where the program is asked for the same numbers in every run, it forbids on purpose.
    """
    for call in source.calls_named(_PRECISION, *source.imported_as(_PRECISION)):
        if any(name.endswith(f"torch.{_PRECISION}") for name in source.names(call.func)):
            given = source.code(call.args[0].value) if call.args else ""
            if given in _FULL and _is_on_purpose(source, call):
                continue
            return Splice(*source.wide_span(call.args[0].value), _FULL[given]) if given in _FULL else True
    for assign in source.every(cst.Assign):
        target = source.code(assign.targets[0].target)
        given = source.code(assign.value)
        if given != "True" and _is_on_purpose(source, assign):
            continue
        if target.endswith("backends.cuda.matmul.allow_tf32"):
            return Splice(*source.wide_span(assign.value), "True") if given == "False" else True
        if target.endswith(("backends.cuda.matmul.fp32_precision", "torch.backends.fp32_precision")):
            return Splice(*source.wide_span(assign.value), _IEEE[given]) if given in _IEEE else True
    return False


def _is_on_purpose(source: Source, node: cst.CSTNode) -> bool:
    """Whether a setting belongs to a mode of the program's: under a condition, in a function named after such a mode.

    A function that the program calls in any case is no mode of it.
    """
    if chosen_by(source, node) is not None:
        return True
    function = source.inside(node, cst.FunctionDef)
    if function is None or _REPRODUCIBLE.search(function.name.value) is None:
        return False
    calls = [call for call in source.every(cst.Call) if call_name(call) == function.name.value]
    return all(chosen_by(source, call) is not None for call in calls)


def _insert(request: Request, newer: bool) -> Answer:
    line = 'backends.cuda.matmul.fp32_precision = "tf32"' if newer else 'set_float32_matmul_precision("high")'
    source = parse(request.sources.get(request.entry or "", ""))
    edits = [(request.entry or "", set_in_torch(source, line))] if source is not None else []
    by_hand = f"Put `torch.{line}` before the first step; the script that starts is not a file we can edit."
    return request.answer(edits, "allow TF32 in matrix products of float32", reasons=[by_hand])


def _recorded(text: str) -> Request:
    return example_request("fp32-matmul", text, facts=Facts(matmul_precision="highest"))


FIXER = Fixer(
    name="allow-tf32",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute",
    rounds_to="tf32",
    order=40,
    examples=(
        *word_diffs(
            _recorded,
            (
                '"""Trains."""\nimport torch\nfrom torch import nn  # layers{+\n\n'
                'torch.set_float32_matmul_precision("high")+}\n\n\ndef main():\n    pass\n'
            ),
            'import torch as th{+\r\n\r\nth.set_float32_matmul_precision("high")+}\r\nmodel = th.nn.Linear(2, 2)\r\n',
            (
                'from torch import nn{+\nimport torch\n\ntorch.set_float32_matmul_precision("high")+}\n'
                "model = nn.Linear(2, 2)\n"
            ),
            "import torch\n\ntorch.set_float32_matmul_precision('{-highest-}{+high+}')  # to be safe\n",
            "import torch\n\ntorch.backends.cuda.matmul.allow_tf32 = {-False-}{+True+}\n",
            (
                'import torch{+\n\ntorch.backends.cuda.matmul.fp32_precision = "tf32"+}\n\n'
                'torch.backends.cudnn.conv.fp32_precision = "tf32"\n'
            ),
        ),
        Example(
            before="import torch\nx = 1\n",
            after=None,
            request=lambda text: example_request("fp32-matmul", text, facts=Facts(matmul_precision="high")),
        ),
        Example(
            before="import torch\nx = 1\n",
            after=None,
            request=lambda text: example_request(
                "fp32-matmul", text, facts=Facts(device_name="Tesla V100", device_capability=(7, 0))
            ),
        ),
        Example(before="import torch\ntorch.backends.cuda.matmul.allow_tf32 = flag\n", after=None, request=_recorded),
    ),
)
