"""Keeps images and the weights of convolutions in the memory format that tensor cores want, channels last.

What it changes
    Adds `model.to(memory_format=torch.channels_last)` after the lines that build the model, before it is wrapped or
    compiled, and passes `memory_format` where the loop moves images to the device. Where the program chooses a format
    itself, `torch.contiguous_format`, that word is changed; a switch of its own that is off is turned on instead.
    `.view(…)` becomes `.reshape(…)`, which also takes tensors that are not laid out channels first.

Why it helps
    Given channels first, cuDNN converts the input and the weight before a convolution and the result after it, each
    time, forward and backward. Those conversions are what is counted beforehand; that the convolutions themselves are
    faster in this format, or other layers slower, only a trial tells.

Fix safety
    Rounding: other kernels for the same convolutions. Values and shapes stay; strides change, in parameters too, which
    a checkpoint does not keep. Torch draws random numbers in the order of memory: training, where a step may draw a
    number for each element of an image, by dropout between convolutions or `randn_like`, and where weights are drawn
    later on. Layers without kernels for this format (some normalisations, some upsampling) convert by themselves and
    can be slower: the trial tells. Left alone: programs that use channels last already, that ask for strides or
    addresses, that hand tensors to operators of their own, and that write through a view.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.models.compilation import model_class, models_of
from diagnose.source.models.construction_end import after_build, end_of_build
from diagnose.source.models.image_draws import image_draw
from diagnose.source.models.image_models import (
    convolves_first,
    layout_use,
    moved_inputs,
    uses_convolutions,
    views_of_images,
)
from diagnose.source.models.model_construction import Built
from diagnose.source.models.weight_draws import weight_draw
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.arguments import argument, set_keywords
from diagnose.source.tree.edits import Source, Splice, ensure_import, parse, replace
from diagnose.source.tree.memo import files_with

_BY_HAND = (
    "Put `model.to(memory_format=torch.channels_last)` after the model is built and before it is wrapped, and "
    "`memory_format=torch.channels_last` where images move to the device."
)
_LAYOUT = re.compile(r"channels_last|memory_format")
_CONVOLVES = re.compile(r"[Cc]onv|\bmodels\.\w+\(|\btimm\.")
"""The code in a class that has convolutions of its own, or takes a model of images from a library."""


def rewrite(request: Request) -> Answer:
    """Turn the program's own choice of format, or make one."""
    answer = _laid_out(request)
    drawn = image_draw(request.sources) if isinstance(answer, Edits) else None
    if not isinstance(answer, Edits) or answer.gate is not None or drawn is None:
        return answer
    return Edits(answer.files, answer.summary, Gate.TRAINING, f"`{drawn}` gives the elements of an image other numbers")


def _laid_out(request: Request) -> Answer:
    if any("channels_last" in text for text in request.sources.values()):
        return _switched_on(request)
    chosen = _chosen(request)
    if (chosen or uses_convolutions(request.sources)) and (asked := layout_use(request.sources)) is not None:
        return Advice(f"Channels last would be read otherwise: {asked}. {_BY_HAND}")
    if chosen:
        return Edits(chosen, "lay images and weights out channels last")
    if not uses_convolutions(request.sources):
        return Advice(_BY_HAND) if request.finding.rule == "layout-transposes" else None
    edits: list[tuple[str, list[Splice]]] = []
    starts: list[str] = []
    drawn: str | None = None
    plain = convolves_first(request.sources)
    for step in training_steps(request.sources, request.sites):
        models = _of_images(request, list(models_of(step, request.sources)))
        for model in models:
            starts += [step.path, model.path]
            torch, imports = ensure_import(model.source, "torch")
            line = f"{model.name}.to(memory_format={torch}.channels_last)"
            edits.append((model.path, [*imports, after_build(model, [line], filled=True)]))
            end = end_of_build(model, filled=True)
            drawn = drawn or (weight_draw(request.sources, model.path, end) if end is not None else None)
        if not models:
            continue
        torch, imports = ensure_import(step.source, "torch")
        for call in moved_inputs(step) if plain else ():
            keywords = {"memory_format": f"{torch}.channels_last"}
            edits.append((step.path, [*imports, *set_keywords(step.source, call, keywords)]))
    if not edits:
        return Advice(_BY_HAND)
    for path, source, view in views_of_images(request.sources, starts):
        if isinstance(view.func, cst.Attribute):
            edits.append((path, [Splice(*source.span(view.func.attr), "reshape")]))
    summary = "lay images and weights out channels last"
    if drawn is None:
        return Edits(request.edited(edits), summary)
    reason = f"`{drawn}` gives the elements of a weight other numbers"
    return Edits(request.edited(edits), summary, Gate.TRAINING, reason)


def _of_images(request: Request, models: list[Built]) -> list[Built]:
    """The models of a step without those whose class shows no convolution, such as a decoder of words; never the first,
    which may be given its layers.
    """
    first = model_class(models[0], request.sources) if models else None
    classes = [(each, model_class(each, request.sources)) for each in models]
    return [
        each
        for each, made in classes
        if made == first or (made is not None and _CONVOLVES.search(made.source.code(made.definition)))
    ]


def _switched_on(request: Request) -> Answer:
    """The program lays out channels last where it is told to: tell it. It needs no look at how it reads strides."""
    found = sorted(request.sources.items(), key=lambda one: one[0] != request.entry)
    for path, text in found:
        source = parse(text) if "channels_last" in text else None
        for node in source.every(cst.Attribute) if source is not None else ():
            assert source is not None
            if "torch.channels_last" in source.names(node):
                turns = request.switches(_LAYOUT).reach(path, source, node)
                if turns:
                    return Edits(request.turned(turns), "turn on the program's own switch for channels last")
    return None


def _chosen(request: Request) -> dict[str, str]:
    """The files in which the program says `torch.contiguous_format` for what it moves."""
    edits: list[tuple[str, list[Splice]]] = []
    for path, source in files_with(request.sources, "contiguous_format"):
        for node in source.every(cst.Attribute):
            if "torch.contiguous_format" in source.names(node) and _is_for_moves(source, node):
                code = source.code(node).replace("contiguous_format", "channels_last")
                edits.append((path, [replace(source, node, code)]))
    return request.edited(edits)


def _is_for_moves(source: Source, node: cst.Attribute) -> bool:
    """Whether a format is passed to `.to(memory_format=…)`, itself or by a name that is only passed there."""
    parent = source.parent(node)
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        of_a_copy = isinstance(call, cst.Call) and "copy(" in source.code(call.func)  # which is written, not trained
        return isinstance(call, cst.Call) and not of_a_copy and source.code(call.func).endswith((".to", ".cuda"))
    if not isinstance(parent, cst.Assign) or not isinstance(parent.targets[0].target, cst.Name):
        return False
    name = parent.targets[0].target.value
    uses = re.findall(rf"\b{name}\b", source.text)
    given = [
        call
        for call in source.every(cst.Call)
        if (arg := argument(call, "memory_format")) is not None and source.code(arg.value) == name
    ]
    return bool(given) and len(uses) == len(given) + 1


def _recorded(text: str) -> Request:
    return example_request("layout-transposes", text)


_LOOP = (
    "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.conv = nn.Conv2d(3, 8, 3)\n        self.out = nn.Linear(8, 2)\n\n"
    "    def forward(self, x):\n        x = self.conv(x){0}\n        return self.out(x.mean((2, 3)))\n\n\n"
    "def main(device, loader):\n    model = Net().to(device)\n{1}"
    "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    for images, labels in loader:\n"
    "        images, labels = images.to(device{2}), labels.to(device)\n        loss = model(images).sum()\n"
    "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
)
_ADDED = "    model.to(memory_format=torch.channels_last)\n"

FIXER = Fixer(
    name="channels-last",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute",
    order=50,
    whole_step=True,
    uncounted=True,
    examples=(
        Example(
            before=_LOOP.format("", "", ""),
            after=_LOOP.format("", _ADDED, ", memory_format=torch.channels_last"),
            request=_recorded,
        ),
        Example(
            before=_LOOP.format(".view(-1, 8, 6, 6)", "", ""),
            after=_LOOP.format(".reshape(-1, 8, 6, 6)", _ADDED, ", memory_format=torch.channels_last"),
            request=_recorded,
        ),
        Example(
            before="import torch\nlayout = torch.contiguous_format\nmodel = Net().to(memory_format=layout)  # plain\n",
            after="import torch\nlayout = torch.channels_last\nmodel = Net().to(memory_format=layout)  # plain\n",
            request=_recorded,
        ),
        Example(before=_LOOP.format("", _ADDED, ""), after=None, request=_recorded),
        Example(
            before=_LOOP.replace("Conv2d(3, 8, 3)", "Linear(8, 8)").format("", "", ""), after=None, request=_recorded
        ),
        Example(
            before="import torch\nx = x.clone(memory_format=torch.contiguous_format)\n", after=None, request=_recorded
        ),
    ),
)
