"""Records the model's launches once, as CUDA graphs, and replays them.

What it changes
    A model that is compiled already gets `mode="reduce-overhead"`. One that is not, and whose input is taken from a
    tensor that is there before training, is captured with `torch.cuda.make_graphed_callables` where it is built.

Why it helps
    A graph of any number of kernels costs the host one launch, so that a device whose kernels are shorter than their
    launches no longer waits for the host.

Fix safety
    Rounding: the same kernels, or those that the compiler chooses. A graph replays the addresses and shapes that it was
    recorded with: its outputs are overwritten by the next replay, which torch reports as an error where compiled code
    is used. Left alone, with advice: inputs whose shape may change, values read within the model, random numbers and
    running statistics (recording would draw and update them), autocast, several models or backward passes. Graphs hold
    memory of their own. The programs that record graphs themselves are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import scope_of, uses_of
from diagnose.source.models.compilation import Compiled, compilations, model_class
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.model_construction import Built, built_model
from diagnose.source.training.training_loop import TrainingStep, has_several_passes, training_steps
from diagnose.source.tree.arguments import argument, has_star, set_keywords
from diagnose.source.tree.edits import Source, Splice, ensure_import
from diagnose.source.tree.text_lines import any_matches

_GRAPHED = re.compile(r"\bmake_graphed_callables\(|\bCUDAGraph\(|\bcuda\.graph\(|reduce-overhead|\"triton.cudagraphs")
_UNRECORDABLE = {
    r"\b[Dd]ropout|\brand\w*\(|\bbernoulli": "draws random numbers, which recording would draw too",
    r"BatchNorm|track_running_stats": "keeps running statistics, which recording would update",
    r"\.item\(\)|\.tolist\(\)|\.cpu\(\)|\.nonzero\(": "reads values within the model",
    r"\bautocast\(": "runs under autocast, and would have to be recorded under it",
    r"\bcheckpoint\(": "recomputes activations",
}
_BY_HAND = (
    "Record the model's launches by hand: `torch.cuda.make_graphed_callables(model, (sample,))` before the first step."
)


def rewrite(request: Request) -> Answer:
    """Let compiled code use graphs, or capture the model."""
    if any_matches(_GRAPHED, request.sources.values()):
        return None
    present = [each for each in compilations(request.sources) if isinstance(each.node, cst.Call)]
    steps = training_steps(request.sources, request.sites)
    if present:
        running = [each for each in present if not _is_off(request, each)]
        if running and has_several_passes(steps):
            return Advice(
                "Several backward passes may follow each other, and what one compiled model has made may be needed "
                'after that of another, when its graph writes it anew. Use `mode="reduce-overhead"` by hand, and clone '
                "what is needed later."
            )
        return _compiled(request, running) if running else None
    if len(steps) != 1 or len(steps[0].forward) != 1:
        return Advice(
            f"{_BY_HAND} No edit is made: more than one call of a model leads to the loss, or none that is found."
        )
    built = built_model(steps[0], request.sources)
    reason = _why_not(request, steps[0], built)
    if reason is not None:
        return Advice(f"{_BY_HAND} No edit is made: {reason}.")
    assert built is not None  # or there is a reason
    return _captured(request, steps[0], built)


def _is_off(request: Request, compiled: Compiled) -> bool:
    """Whether a switch that says no stands before it: `if compile and model:` with `--compile=False`."""
    if compiled.condition is None or any(site.kind == "compile" for site in request.sites):
        return False
    return any(_says_no(request, compiled, test) for test in _conjuncts(compiled.condition.test))


def _conjuncts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from (*_conjuncts(test.left), *_conjuncts(test.right))
    else:
        yield test


def _says_no(request: Request, compiled: Compiled, test: cst.BaseExpression) -> bool:
    word = request.told(test)
    if word is not None:
        return re.search(r"^--no|[= ](False|false|0|no|off)$", word) is not None
    setting = request.set_by(test, compiled.path, compiled.source, switch=True)
    return setting is not None and setting.value is False


def _compiled(request: Request, present: Sequence[Compiled]) -> Answer:
    edits: list[tuple[str, list[Splice]]] = []
    for each in present:
        assert isinstance(each.node, cst.Call)  # decorators are left out above
        given = {name: argument(each.node, name) for name in ("mode", "dynamic", "options", "backend")}
        if has_star(each.node) or given["options"] or given["backend"]:
            return Advice(
                f"{each.path} passes options to the compiler: add triton.cudagraphs there if shapes are fixed."
            )
        dynamic = given["dynamic"]
        if dynamic is not None and each.source.code(dynamic.value) not in {"False", "None"}:
            return Advice("Code for changing shapes would be recorded anew for each: pad lengths to a few sizes first.")
        mode = given["mode"]
        if mode is not None and each.source.code(mode.value).strip("\"'") not in {"default", "None"}:
            return None
        edits.append((each.path, set_keywords(each.source, each.node, {"mode": '"reduce-overhead"'})))
    return Edits(request.edited(edits), "record the launches of compiled code as CUDA graphs")


def _why_not(request: Request, step: TrainingStep, built: Built | None) -> str | None:
    if step.source.code(step.forward[0].func) != step.model:
        return "the model is called in a function of its own"
    if built is None:
        return "where the model is built is not found"
    if built.scope is not step.scope:
        return "the model is built in another function than the one that trains it"
    if "." in built.name:
        return f"the model is an attribute, `{built.name}`, which others may call too"
    if len(built.assigned) != 1:
        return "the model is built in one of several ways, or wrapped"
    made = model_class(built, request.sources)
    if made is None:
        return "the model is of no class in your files, so that what it does cannot be read"
    texts = [source.code(each) for source, each in _classes(request)]
    for pattern, words in _UNRECORDABLE.items():
        loop = step.source.code(step.loop) if step.loop is not None else ""
        if any(re.search(pattern, text) for text in [*texts, loop if "autocast" in pattern else ""]):
            return f"the model {words}"
    if _sample(step) is None:
        return "whether all batches have one shape cannot be told"
    return None


def _classes(request: Request) -> list[tuple[Source, cst.ClassDef]]:
    """All classes of the program that may be a part of the model."""
    found = {built.path: built.source for step in training_steps(request.sources) for built in [step]}
    return [(source, each) for source in found.values() for each in source.every(cst.ClassDef)]


def _sample(step: TrainingStep) -> list[str] | None:
    """Inputs of the shapes of every step, made of what is there before the loop; None where that is not sure.

    `series[step % 4]` has the shape of `series[0]` whatever `step` is: one index takes away one dimension.
    """
    samples: list[str] = []
    for arg in step.forward[0].args:
        value = arg.value
        if arg.keyword is not None or arg.star or not isinstance(value, cst.Subscript) or len(value.slice) != 1:
            return None
        index = value.slice[0].slice
        if not isinstance(value.value, cst.Name) or not isinstance(index, cst.Index) or not _counts(step, index.value):
            return None
        uses = uses_of(step.source, step.scope, value.value.value)
        made = uses.assigned[0][1] if len(uses.assigned) == 1 and not uses.augmented and not uses.lost else None
        if not isinstance(made, cst.Call) or not _makes_tensor(step.source, made):
            return None
        if step.source.span(made)[0] > step.source.span(step.backward)[0]:
            return None
        samples.append(f"{value.value.value}[0]")
    return samples or None


def _counts(step: TrainingStep, index: cst.BaseExpression) -> bool:
    """Whether an index is a number: arithmetic of the loop's counter and literals."""
    if not isinstance(step.loop, cst.For) or not step.source.code(step.loop.iter).startswith("range("):
        return False
    counter = step.source.code(step.loop.target)
    parts = [node for node in step.source.walk(index) if isinstance(node, cst.BaseExpression)]
    return all(
        isinstance(node, cst.BinaryOperation | cst.Integer | cst.Call)
        or (
            isinstance(node, cst.Name)
            and (node.value in {counter, "len"} or isinstance(_parent_call(step, node), cst.Call))
        )
        for node in parts
    )


def _parent_call(step: TrainingStep, node: cst.Name) -> cst.CSTNode | None:
    """The call of `len` whose argument a name is."""
    call = step.source.inside(node, cst.Call)
    return call if call is not None and step.source.code(call.func) == "len" else None


def _makes_tensor(source: Source, call: cst.Call) -> bool:
    names = source.names(call.func)
    return any(re.fullmatch(r"torch\.(randn?|randint|zeros|ones|empty|full|stack|load)", name) for name in names)


def _captured(request: Request, step: TrainingStep, built: Built) -> Answer:
    source = built.source
    samples = _sample(step) or []
    torch, imports = ensure_import(source, "torch")
    known = uses_of(source, scope_of(source, built.statement), "device").assigned
    test = (
        'device.type == "cuda"' if known and "device(" in source.code(known[0][1]) else f"{torch}.cuda.is_available()"
    )
    sample = ", ".join(samples) + ("," if len(samples) == 1 else "")
    lines = [
        f"if {test}:",
        f"{source.indentation}{built.name} = {torch}.cuda.make_graphed_callables({built.name}, ({sample}))",
    ]
    edits = request.edited([(built.path, [*imports, after_build(built, lines)])])
    return Edits(edits, "record the model's launches as CUDA graphs, forward and backward")


_PROGRAM = (
    "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\n"
    "device = torch.device('cuda')\nseries = torch.randn(4, 8, 8, device=device)\nmodel = Net().to(device)\n{}"
    "for step in range(100):\n    loss = model({}).mean()\n    loss.backward()\n"
)
_GRAPHS = 'if device.type == "cuda":\n    model = torch.cuda.make_graphed_callables(model, (series[0],))\n'


def _recorded(text: str) -> Request:
    return example_request("launch-bound", text, facts=Facts(device_name="NVIDIA H200"))


FIXER = Fixer(
    name="cuda-graphs",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="idle.dispatch+idle.launch+idle.python",
    order=90,
    after=("defer-item", "drop-synchronize", "compile-model"),
    examples=(
        Example(_PROGRAM.format("", "series[step % 4]"), _PROGRAM.format(_GRAPHS, "series[step % 4]"), _recorded),
        Example(
            _PROGRAM.format("model.compile()\n", "batch"),
            _PROGRAM.format('model.compile(mode="reduce-overhead")\n', "batch"),
            _recorded,
        ),
        Example(
            _PROGRAM.format("model = torch.compile(model)  # fast\n", "batch"),
            _PROGRAM.format('model = torch.compile(model, mode="reduce-overhead")  # fast\n', "batch"),
            _recorded,
        ),
        Example(_PROGRAM.format("", "series[:, : step + 1]"), None, _recorded),
        Example(_PROGRAM.format("", "batch"), None, _recorded),
        Example(_PROGRAM.format("", "series[0]").replace("    pass", "    p = nn.Dropout(0.1)"), None, _recorded),
        Example(_PROGRAM.format("", "series[0]").replace("    pass", "    n = nn.BatchNorm1d(8)"), None, _recorded),
        Example(_PROGRAM.format("model.compile(dynamic=True)\n", "batch"), None, _recorded),
        Example(_PROGRAM.format("model.compile(mode='max-autotune')\n", "batch"), None, _recorded),
    ),
)
