"""Multiplies in fp8 in the large linear layers of a compiled model that computes in bfloat16.

What it changes
    Adds `multiply_in_fp8(model)` of `diagnose.kernels` after the lines that build the model and move it.

Why it helps
    Tensor cores multiply fp8 at up to twice the rate of bfloat16, and a layer's input is kept for the backward pass
    in half the memory. Each tensor is scaled by its largest magnitude, anew in each step: inputs and weights are
    rounded to e4m3, gradients to e5m2. That costs passes over memory, so only layers of at least four million weights
    are changed, and only where a compiler fuses those passes with what is around them. How much that gives, only a
    trial tells.

Fix safety
    Training: operands of products keep 3 bits of mantissa, gradients 2, so the course of the training changes. It is
    tried only when that is allowed. The state dict, the class of the layers and the optimizer's parameters stay; a copy
    by `deepcopy` multiplies in fp8 too, and a model that is pickled whole loads as plain layers. Without gradients, and
    in other formats, layers compute as before. Left alone: output layers over a vocabulary, tied weights, subclasses of
    `nn.Linear`, layers with hooks; devices without fp8, programs that compile nothing or compute in another format;
    those that hook, adapt or quantise layers, shard or replicate the model by more than DistributedDataParallel, take
    gradients of gradients, or use TorchScript or fp8 by themselves. The program then imports `diagnose.kernels`, which
    needs torch and nothing else of ours: where it runs, this package has to be installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from diagnose.fixer import Advice, Answer, Example, Facts, Fixer, Gate, Request, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.models.compilation import compilations, models_of
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.model_construction import Built
from diagnose.source.rewrite.adapted_layers import adaptation
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.edits import Splice, ensure_from_import
from diagnose.source.tree.text_lines import any_matches

_FIRST_WITH_FP8 = (8, 9)
_NARROW = re.compile(r"float8|fp8|transformer_engine")
_OTHERWISE = re.compile(
    r"\bfully_shard\(|FullyShardedDataParallel|\bparallelize_module\(|\bdistribute_(?:module|tensor)\(|\bdeepspeed\b"
    r"|(?<!Distributed)\bDataParallel\(|torch\.jit\.|\bcopy\.copy\(|\bsafe_globals\("
)
"""Shards or copies modules with what they hold, of which a method would still be bound to the first, or reads pickles
only of classes that it lists."""
_BY_HAND = "Its large linear layers can multiply in fp8: `diagnose.kernels.multiply_in_fp8(model)`."


def rewrite(request: Request) -> Answer:
    """Put the call behind every model of a training step."""
    if not _can_gain(request) or any_matches(_NARROW, request.sources.values()):
        return None
    if (found := _found(request)) is not None:
        return Advice(f"{_BY_HAND} No edit is made: {found}.")
    edits: list[tuple[str, Sequence[Splice]]] = []
    for path, models in _models(request).items():
        (function,), imports = ensure_from_import(models[0].source, "diagnose.kernels", ["multiply_in_fp8"])
        calls = [after_build(built, [f"{function}({built.name})"], filled=True) for built in models]
        edits.append((path, [*imports, *calls]))
    return request.answer(edits, "multiply in fp8 in large linear layers; the program then needs this package")


def _can_gain(request: Request) -> bool:
    """Whether the device has fp8, and the program compiles what it computes in bfloat16."""
    facts = request.facts
    if facts.device_capability is None or facts.device_capability < _FIRST_WITH_FP8:
        return False
    if "NVIDIA" not in (facts.device_name or ""):
        return False  # numbers of AMD's capabilities mean other devices
    ran = any(site.kind == "compile" for site in request.sites)
    compiles = ran or any(found.condition is None for found in compilations(request.sources))
    # Autocast that a fix has put in stands in the text alone.
    narrow = facts.autocast_dtype == "bfloat16" or any("bfloat16" in text for text in request.sources.values())
    return compiles and narrow


def _found(request: Request) -> str | None:
    """Return why layers keep their own forward pass, with the line; None where nothing speaks against another."""
    if (line := second_derivative(request.sources)) is not None:
        return f"{line} takes gradients of gradients, which products in fp8 do not have"
    if (line := adaptation(request.sources, "", ("torch.nn.Linear",))) is not None:
        return f"{line} hooks, adapts or replaces layers"
    for path, source in request.sources.items():
        for number, text in enumerate(source.splitlines(), 1):
            if _OTHERWISE.search(text.partition("#")[0]) is not None:
                return f"{path}:{number} distributes, copies or compiles modules in a way that may not keep it"
    return None


def _models(request: Request) -> dict[str, list[Built]]:
    """The models of the training steps, each once, by the file that builds them."""
    found: dict[tuple[str, str], Built] = {}
    for step in training_steps(request.sources, request.sites):
        for built in models_of(step, request.sources):
            found.setdefault((built.path, built.name), built)
    by_file: dict[str, list[Built]] = {}
    for built in found.values():
        by_file.setdefault(built.path, []).append(built)
    return by_file


_NVIDIA = Facts(device_name="NVIDIA H200", device_capability=(9, 0), autocast_dtype="bfloat16")
_HEAD = "import torch\n{0}from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\n"
_LOOP = (
    "opt = torch.optim.AdamW(model.parameters())\n"
    "for x in batches:\n    loss = model(x).mean()\n    loss.backward()\n    opt.step()\n    opt.zero_grad()\n"
)


def _recorded(text: str) -> Request:
    return example_request("compute", text, facts=_NVIDIA)


def _before_fp8(text: str) -> Request:
    return example_request("compute", text, facts=Facts(device_name="NVIDIA A100", device_capability=(8, 0)))


def _example(before: str, after: str | None) -> Example:
    head = _HEAD.format("from diagnose.kernels import multiply_in_fp8\n")
    return Example(_HEAD.format("") + before + _LOOP, None if after is None else head + after + _LOOP, _recorded)


_COMPILED = "model = Net().to('cuda')\nmodel.compile()\n"
_ADDED = "model = Net().to('cuda')\nmultiply_in_fp8(model)\nmodel.compile()\n"

FIXER = Fixer(
    name="fp8-linear",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    rounds_to="fp8",
    mechanism="compute",
    order=61,
    after=("autocast-bf16", "compile-model", "use-diagnose-backend"),
    uncounted=True,
    examples=(
        _example(_COMPILED, _ADDED),
        _example(
            "model = Net()\nmodel = torch.compile(model)\n",
            "model = Net()\nmodel = torch.compile(model)\nmultiply_in_fp8(model)\n",
        ),
        Example(_HEAD.format("") + _COMPILED + _LOOP, None, _before_fp8),
        _example("model = Net()\n", None),
        _example("model = Net()\nif off: model.compile()\n", None),
        _example(_COMPILED + "convert_to_float8_training(model)\n", None),
        _example(_COMPILED + "fully_shard(model)\n", None),
        _example(_COMPILED + "model.register_forward_hook(look)\n", None),
        _example(_COMPILED + "torch.nn.utils.parametrizations.weight_norm(model.out)\n", None),
        _example(_COMPILED + "(slope,) = torch.autograd.grad(model(x), x, create_graph=True)\n", None),
    ),
)
