"""Lets the graph rewriter put fused operators where the model's graph has room for them.

What it changes
    For a loss over all logits, `torch.compile(model)` and `model.compile()` get `backend=` of `diagnose.graph`, which
    hands the rest of the graph to the default compiler. A model that is not compiled gets
    `model.compile(backend=…, options={"inner": "eager"})` after the lines that build it: its graph is rewritten and
    otherwise runs as it is.

Why it helps
    An output layer with its loss, residual norms, gated units or rotary embedding that stand in a library's code, or
    are spread over methods, show in the graph as they do in no source of yours. Each place is rewritten only where that
    pays on this device and does the same on the values of the first call; beside a compiler that is the loss over all
    logits.

Fix safety
    Rounding: sums in another order, in float32; every place is checked forward and backward before it is rewritten. The
    program then imports `diagnose.graph`, which needs torch, and Triton to be fast, and nothing else: where it runs,
    this package has to be installed. Left alone: programs that name a backend, compile by a decorator or only under a
    switch that was off; what else a compiler fuses by itself; a loss that is computed beside a model which is not
    compiled; where the program compiles nothing, hooks on modules and a forward pass that does more than compute with
    tensors, such as to draw random numbers of NumPy's; and what cannot be compiled: gradients of gradients,
    TorchScript, CUDA graphs of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Site, example_request
from diagnose.source.models.compilation import Compiled, compilations, model_class
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.model_construction import Built, built_model
from diagnose.source.models.model_loss import computes_loss
from diagnose.source.models.unused_classes import unused_classes
from diagnose.source.rewrite.hooks import module_hook
from diagnose.source.training.repeated_forward import forward_effect
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.arguments import argument, has_star, set_keywords
from diagnose.source.tree.edits import Splice, ensure_from_import
from diagnose.source.tree.text_lines import matches

_NOT_COMPILED = re.compile(
    r"create_graph\s*=\s*True|torch\.func\.|\bfunctorch\b|torch\.jit\.|\bmake_graphed_callables\(|\bCUDAGraph\(|\bcuda\.graph\("
    r"|(?<!Distributed)DataParallel\("
)
_INSTALLED = "the program then needs this package"


def rewrite(request: Request) -> Answer:
    """Name the backend where the program compiles, or compile with it where the program does not."""
    if any("diagnose.graph" in text or matches(_NOT_COMPILED, text) for text in request.sources.values()):
        return None
    present = compilations(request.sources)
    if present:
        # All else a compiler fuses by itself, and the program would import this package for nothing.
        return _named(request, present) if request.finding.rule == "unfused-loss" else None
    if any(site.kind == "compile" for site in request.sites):
        return None
    if request.finding.rule == "unfused-loss" and not computes_loss(request.sources, request.sites):
        return None
    return _added(request)


def _named(request: Request, present: Sequence[Compiled]) -> Answer:
    """The backend in each call that compiles something in this run."""
    ran = {site.line for site in request.sites if site.kind == "compile"}
    edits: list[tuple[str, Sequence[Splice]]] = []
    for compiled in present:
        call = compiled.node
        if not isinstance(call, cst.Call) or has_star(call) or argument(call, "backend") is not None:
            return None
        first, last = compiled.source.lines_of(call)
        if not (ran & set(range(first, last + 1)) if ran else compiled.condition is None):
            return None
        (backend,), imports = ensure_from_import(compiled.source, "diagnose.graph", ["backend"])
        edits.append((compiled.path, [*imports, *set_keywords(compiled.source, call, {"backend": backend})]))
    if len({path for path, _ in edits}) < len(edits):
        return None  # Two calls in a file would import twice.
    return Edits(request.edited(edits), f"compile with the graph rewriter of diagnose.graph; {_INSTALLED}")


def _added(request: Request) -> Answer:
    """A call after each model of a training step is built."""
    matters = module_hook(request.sources) or forward_effect(request.sources)
    unused = unused_classes(request.sources, request.sites) if matters else frozenset()
    if (hook := module_hook(request.sources, unused)) is not None:
        return Advice(f"{hook} hooks modules, and a graph of the model may leave hooks out.")
    if (effect := forward_effect(request.sources, unused)) is not None:
        return Advice(f"{effect} in a forward pass, which a graph of the model may do otherwise.")
    models: dict[tuple[str, str], Built] = {}
    for step in training_steps(request.sources, request.sites):
        built = built_model(step, request.sources)
        made = model_class(built, request.sources) if built is not None else None
        if built is None or (made is not None and made.has_compile):
            return None
        models.setdefault((built.path, built.name), built)
    if len({path for path, _ in models}) < len(models):
        return None
    edits: list[tuple[str, Sequence[Splice]]] = []
    for built in models.values():
        (backend,), imports = ensure_from_import(built.source, "diagnose.graph", ["backend"])
        line = f'{built.name}.compile(backend={backend}, options={{"inner": "eager"}})'
        edits.append((built.path, [*imports, after_build(built, [line], filled=True)]))
    done = f"rewrite the model's graph with fused operators, otherwise run as it is; {_INSTALLED}"
    return request.answer(edits, done)


_HEAD = "import torch\n{imports}from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\n"
_IMPORT = "from diagnose.graph import backend\n"
_LOOP = (
    "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for x in batches:\n    loss = model(x).mean()\n    loss.backward()\n"
)


def _recorded(text: str) -> Request:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "compile(" in line and "if off" not in line]
    rule = "unfused-loss" if lines else "unfused-pointwise"
    return example_request(rule, text, sites=[Site("compile", "train.py", line) for line in lines])


def _example(before: str, after: str | None) -> Example:
    fixed = None if after is None else _HEAD.format(imports=_IMPORT) + after + _LOOP
    return Example(_HEAD.format(imports="") + before + _LOOP, fixed, _recorded)


FIXER = Fixer(
    name="use-diagnose-backend",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=67,
    after=("compile-model", "fuse-linear-cross-entropy", "fuse-cross-entropy"),
    examples=(
        _example("model = torch.compile(Net())\n", "model = torch.compile(Net(), backend=backend)\n"),
        _example(
            'model = Net()\nmodel.compile(mode="max-autotune-no-cudagraphs")  # once\n',
            'model = Net()\nmodel.compile(mode="max-autotune-no-cudagraphs", backend=backend)  # once\n',
        ),
        _example(
            "model = Net().to('cuda')\n",
            'model = Net().to(\'cuda\')\nmodel.compile(backend=backend, options={"inner": "eager"})\n',
        ),
        _example('model = torch.compile(Net(), backend="aot_eager")\n', None),
        _example("model = Net()\nif off: model.compile()\n", None),
        _example("model = torch.jit.script(Net())\n", None),
        _example("model = nn.DataParallel(Net())\n", None),
        _example("model = Net()\nstep = torch.compile(model, **options)\n", None),
    ),
)
