"""Compiles the model, whole or block by block.

What it changes
    Adds `model.compile()` after the lines that build the model and before it is wrapped for several devices, or a loop
    that compiles each of its repeated blocks; the same for every other model whose output reaches the loss. Which of
    the two, and whether launches are recorded as CUDA graphs (`mode="reduce-overhead"`), is chosen by trial. Where the
    program has a switch for it that is off, that is turned on instead, on the command line where that is how the
    program is steered. Where a switch in the source prints, or changes the keys of what is saved, `model.compile()` is
    its `else:`. `Module.compile` leaves the module what it is, so that checkpoints keep their keys, which `model =
    torch.compile(model)` would not. What the steps of a Lightning module call is compiled where it is built. Arguments
    of Hugging Face's Trainer get `torch_compile=True`, and `tf32=False` where it would allow TF32 with it. Where steps
    call methods of a module that has no `forward`, or one that only raises (`agent.act(observations)`), which
    `compile()` leaves alone, these are compiled: `agent.act = torch.compile(agent.act)`. Where the model's own forward
    pass alone does more than compute, the one module of the program's that it keeps and calls is compiled.

Why it helps
    Eager code launches a kernel for every operator. Each reads its operands from memory and writes its result back,
    and each costs the host some microseconds to launch. Compiled code does chains of them in one kernel, and calls
    them from a loop that does nothing else.

Fix safety
    Rounding. The same operators, evaluated in another order and with intermediate results kept in wider formats; the
    gate compares with float64. Dropout draws from a generator of its own: the same distribution, other numbers.
    Compiling takes a part of the first steps, from seconds to minutes. Left alone: programs that compile already or
    record CUDA graphs of their own; a loss that is computed beside the model, which does not have it; models that step
    through time in Python, which the compiler would write out moment by moment, for minutes; gradients of gradients,
    which compiled code does not have; hooks on modules; a forward pass that prints, counts, keeps values or draws
    numbers that are not torch's, unless it is of a class of modules that no part of the run builds; models that are
    called by another name than their own, and those that a library trains; methods, where the program copies modules
    or pickles this one. Values that a forward pass makes once, such as a mask, are kept as in eager code; CUDA graphs,
    which write over them, are not tried then, nor where several backward passes may follow each other, as in a GAN.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, Scalar, Site, example_request
from diagnose.source.derivatives import second_derivative
from diagnose.source.models.compilation import Compiled, compilations, inner_model, model_class, models_of
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.lightning import lightning_models
from diagnose.source.models.model_construction import Built
from diagnose.source.models.model_loss import computes_loss
from diagnose.source.models.model_methods import CalledMethods, called_methods, shared_whole
from diagnose.source.models.unused_classes import unused_classes
from diagnose.source.models.wrapped_uses import use_of_wrapper
from diagnose.source.rewrite.hooks import module_hook
from diagnose.source.training.repeated_forward import forward_effect, makes_once, method_effect
from diagnose.source.training.training_loop import has_several_passes, training_steps
from diagnose.source.tree.built_classes import Classes
from diagnose.source.tree.edits import Source, Splice, call_name, ensure_import, free_name, insert_after
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.text_lines import any_matches

_PADS = re.compile(r"\bpad_sequence\(|padding\s*=\s*(?:True\b|[\"']longest)")
_GRAPHED = frozenset({"make_graphed_callables", "CUDAGraph"})
_LOOPS = "CUDA graphs replay it as it is; one kernel for the whole series (nn.LSTM, nn.GRU) is better still."
_COMPILES = re.compile(r"\bcompile\b|dynamo|inductor")
"""The subjects of lines that a switch for it may decide on."""
_BY_HAND = "Compile by hand where it is built: `model.compile()`."


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Whole or by block; for a program that waits for launches also with CUDA graphs."""
    models = _models(request)
    if compilations(request.sources) or not (models or _methods(request)):
        return ({},)
    tried: list[Mapping[str, Scalar]] = [{"compile": "whole"}]
    if models and all(_blocks(request, built) for built in models):
        tried.append({"compile": "blocks"})
    waits = request.finding.rule == "launch-bound" and request.facts.device_name is not None
    # Graphs of launches write over what an earlier one has left; a backward pass ends what torch keeps for a forward.
    passes = has_several_passes(training_steps(request.sources, request.sites))
    if waits and not (passes or _lengths_vary(request) or _makes_once(request)):
        tried.append({"compile": "whole", "mode": "reduce-overhead"})
    return tried


def rewrite(request: Request) -> Answer:
    """Compile every model that a training step calls."""
    present = compilations(request.sources)
    if any(site.kind == "compile" for site in request.sites):
        return None
    if request.finding.rule == "unfused-loss" and not computes_loss(request.sources, request.sites):
        return None
    if not present:
        return _in_place(request)
    present = _of_training(request, present)
    if all(found.condition is None for found in present):
        return None
    return _switched_on(request, present)


def _of_training(request: Request, present: tuple[Compiled, ...]) -> tuple[Compiled, ...]:
    """The uses of torch.compile in files that train a model or build it; where none is there, those of all files."""
    paths = {step.path for step in training_steps(request.sources, request.sites)}
    paths |= {built.path for built in _models(request)}
    return tuple(each for each in present if each.path in paths) or present


def _in_place(request: Request, own: Compiled | None = None) -> Answer:
    """`model.compile()`; where the program's own use of torch.compile is switched off, in place of that."""
    if _records_graphs(request):
        return None
    optimizers = {str(site.arguments.get("name")) for site in request.sites if site.kind == "optimizer"}
    matters = second_derivative(request.sources, optimizers=optimizers) or module_hook(request.sources)
    matters = matters or forward_effect(request.sources)
    unused = unused_classes(request.sources, request.sites) if matters else frozenset()
    if (twice := second_derivative(request.sources, unused, optimizers)) is not None:
        return Advice(
            f"{twice} takes gradients of gradients, which do not go through compiled code. {_BY_HAND} "
            "Leave those parts out of it."
        )
    if (hook := module_hook(request.sources, unused)) is not None:
        return Advice(f"{hook} hooks modules, and compiled code may leave hooks out. Compile the rest by hand.")
    models = _models(request)
    if (effect := forward_effect(request.sources, unused)) is not None:
        models = _inner_models(request, models, unused)
        if not models:
            return Advice(
                f"{effect} in a forward pass, which compiled code may do otherwise. Take it out, then compile."
            )
    if not models:
        return _methods_compiled(request) or _library(request)
    classes = [made for built in models if (made := model_class(built, request.sources)) is not None]
    if any(made.steps_through_time for made in classes):
        return Advice(
            f"The model steps through time in Python, which the compiler would write out moment by moment. {_LOOPS}"
        )
    if (scripted := _scripted(request, models)) is not None:
        return Advice(f"{scripted} uses TorchScript, which excludes torch.compile: take torch.jit out first.")
    edits: list[tuple[str, Sequence[Splice]]] = []
    for built in models:
        lines = _lines(request, built)
        if isinstance(lines, Advice):
            return lines
        edits.append((built.path, [_otherwise(built, lines, own) or after_build(built, lines, filled=True)]))
    how = "each block of the model" if request.setting.get("compile") == "blocks" else "the model"
    mode = " and record its launches as CUDA graphs" if request.setting.get("mode") == "reduce-overhead" else ""
    return Edits(request.edited(edits), f"compile {how}{mode}")


def _otherwise(built: Built, lines: Sequence[str], own: Compiled | None) -> Splice | None:
    """The lines as the `else:` of the `if` that compiles the model, where they would come right behind it."""
    condition = own.condition if own is not None and own.path == built.path and own.target == built.name else None
    if condition is None or condition.orelse is not None:
        return None
    branch = insert_after(built.source, condition, ["else:", *(built.source.indentation + line for line in lines)])
    return branch if branch.start == after_build(built, lines, filled=True).start else None


def _methods(request: Request) -> list[CalledMethods]:
    return called_methods(training_steps(request.sources, request.sites), request.sources)


def _methods_compiled(request: Request) -> Answer:
    """`agent.act = torch.compile(agent.act)` for each method that a step calls in the place of its model."""
    edits: list[tuple[str, Sequence[Splice]]] = []
    for methods in _methods(request):
        built = methods.built
        by_hand = "Compile by hand: " + "; ".join(f"`{built.name}.{name} = torch.compile(…)`" for name in methods.names)
        if (effect := method_effect(request.sources, methods.names)) is not None:
            return Advice(f"{effect} in a method that a step calls, which compiled code may do otherwise. {by_hand}.")
        if (shared := shared_whole(methods, request.sources)) is not None:
            return Advice(f"{shared} copies or pickles a module, with which compiled methods would not go. {by_hand}.")
        torch, imports = ensure_import(built.source, "torch")
        options = ', mode="reduce-overhead"' if request.setting.get("mode") == "reduce-overhead" else ""
        lines = [f"{built.name}.{name} = {torch}.compile({built.name}.{name}{options})" for name in methods.names]
        edits.append((built.path, [*imports, after_build(built, lines, filled=True)]))
    return request.answer(edits, "compile the methods of the model that steps call")


def _scripted(request: Request, models: Sequence[Built]) -> str | None:
    """The first line with TorchScript of the files that build, train or define the models; others may lie beside."""
    paths = [built.path for built in models]
    paths += [made.path for built in models if (made := model_class(built, request.sources)) is not None]
    paths += [step.path for step in training_steps(request.sources, request.sites)]
    for path in dict.fromkeys(paths):
        text = request.sources[path]
        if "torch.jit." in text:
            return f"{path}:{text[: text.index('torch.jit.')].count(chr(10)) + 1}"
    return None


def _makes_once(request: Request) -> bool:
    """Whether a forward pass that may run does more than compute with tensors, values that it makes once included."""
    sources = request.sources
    return makes_once(sources) and makes_once(sources, unused_classes(sources, request.sites))


def _records_graphs(request: Request) -> bool:
    """Whether the program records CUDA graphs of its own."""
    return any(
        source.calls_named(*_GRAPHED) or any(source.calls_of("torch.cuda.graph"))
        for source in parse_all(request.sources).values()
    )


def _models(request: Request) -> list[Built]:
    """Return where the models of all training steps are built, each once."""
    found = {(built.path, built.name): built for built in lightning_models(request.sources)}
    for step in training_steps(request.sources, request.sites):
        for each in models_of(step, request.sources):
            found.setdefault((each.path, each.name), each)
    return list(found.values())


def _inner_models(request: Request, models: Sequence[Built], unused: Classes) -> list[Built]:
    """The module that each model keeps and calls, where the forward passes of the models themselves alone do more than
    compute; none where others do as well.
    """
    outer = [model_class(built, request.sources) for built in models]
    inner = [inner_model(made, request.sources, unused) for made in outer if made is not None]
    found = [built for built in inner if built is not None]
    left_out = unused | {(made.path, made.name) for made in outer if made is not None}
    clean = len(found) == len(models) and forward_effect(request.sources, left_out) is None
    return found if clean else []


def _blocks(request: Request, built: Built) -> str | None:
    made = model_class(built, request.sources)
    return made.repeated_blocks(request.sources) if made is not None else None


def _lengths_vary(request: Request) -> bool:
    return any_matches(_PADS, request.sources.values())


def _lines(request: Request, built: Built) -> list[str] | Advice:
    """Return what to insert, without indentation."""
    made = model_class(built, request.sources)
    if made is not None and made.has_compile:
        return Advice(f"{made.name} has a method `compile` of its own. Wrap the model: `torch.compile({built.name})`.")
    if any(site.kind == "DataParallel" and site.arguments.get("devices") not in (0, 1) for site in request.sites):
        return Advice(
            "DataParallel copies the model in every step, compiled or not: use DistributedDataParallel first."
        )
    dynamic = "dynamic=True" if _lengths_vary(request) else ""
    mode = request.setting.get("mode")
    options = ", ".join(filter(None, [f'mode="{mode}"' if mode else "", dynamic]))
    if request.setting.get("compile") != "blocks":
        return [f"{built.name}.compile({options})"]
    path = _blocks(request, built)
    if path is None:
        return Advice(f"No list of blocks is found in the model. {_BY_HAND}")
    block = free_name(built.source, "block") if isinstance(built.scope, cst.Module) else "block"
    indent = built.source.indentation
    return [f"for {block} in {built.name}.{path}:", f"{indent}{block}.compile({options})"]


def _switched_on(request: Request, present: Sequence[Compiled]) -> Answer:
    """The program has a switch that was off in this run: turn it on, or compile in place where it would do more."""
    switches = request.switches(_COMPILES)
    for compiled in present:
        condition = compiled.condition
        if condition is None or isinstance(compiled.node, cst.Decorator):
            continue
        turns = switches.reach(compiled.path, compiled.source, compiled.node)
        asked = use_of_wrapper(request.sources, compiled)
        own = Edits(request.turned(turns), "turn on the program's own switch for torch.compile") if turns else None
        # What a program prints where an option is on, whole runs know by the command line that gives it.
        silent = all(turn.setting.form == "command" for turn in turns or ()) or not _prints(compiled.source, condition)
        if own is not None and asked is None and silent:
            return own
        in_place = _in_place(request, compiled)
        if isinstance(in_place, Edits):
            return replace(in_place, summary=f"{in_place.summary}, in place: what is saved keeps its keys")
        if own is not None and asked is None:
            return own
        if asked is not None:
            return Advice(
                f"{asked} asks the model for what `torch.compile(…)` changes: names of parameters get "
                f"`_orig_mod.`, and its class is another. Use `{compiled.target}.compile()` behind the switch."
            )
        source = compiled.source
        where = f"{compiled.path}:{source.lines_of(compiled.node)[0]}"
        return Advice(f"{where} compiles {compiled.target} only if `{source.code(condition.test)}`: run it so.")
    return None


def _prints(source: Source, condition: cst.If) -> bool:
    """Whether the switch also makes the program print."""
    return any(call_name(call) == "print" for call in source.every(cst.Call, condition.body))


def _library(request: Request) -> Answer:
    """A library's loop: its own argument where there is one."""
    for trainer in request.trainers():
        options = trainer.options
        if not trainer.knows("compile") or options.value("compile") is True:
            continue
        wanted: dict[str, Scalar] = {"compile": True}
        facts = request.facts
        allowed = facts.matmul_precision in ("high", "medium")
        if (facts.device_capability or (0, 0)) >= (8, 0) and not allowed and not trainer.is_given("tf32"):
            wanted["tf32"] = False
        placed = options.place_all(wanted)
        reasons = [each.reason for each in placed if each.reason]
        if reasons:
            return Advice(" ".join(reasons))
        edits = request.edited(edit for each in placed for edit in each.edits.items())
        kept = ", without the TF32 that it would allow with it" if "tf32" in wanted else ""
        return Edits(edits, f"let the Trainer compile the model{kept}")
    if any(re.search(r"\bdef training_step\(", text) for text in request.sources.values()):
        return Advice(f"The model that Lightning trains was not found where it is built. {_BY_HAND}")
    return Advice(f"The call of the model in a training step was not found in your files. {_BY_HAND}")


_HEAD = "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\n"
_LOOP = (
    "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for x in batches:\n    loss = model(x).mean()\n    loss.backward()\n"
)
_RECURRENT = _HEAD.replace(
    "    pass",
    "    def forward(self, x):\n        h = x[:, 0]\n        for t in range(x.shape[1]):\n"
    "            h = self.cell(x[:, t], h)\n        return h",
)
_AGENT = (
    "import torch\nfrom torch import nn\n\n\nclass Agent(nn.Module):\n"
    "    def act(self, x):\n        return self.policy(x)\n\n\n"
)
_ACTS = _LOOP.replace("model(x)", "agent.act(x)").replace("model.", "agent.")
_EITHER = "if big:\n    model = Net(9)\nelse:\n    model = Net()\n"
_GPT = (
    "import torch\nfrom torch import nn\n\n\nclass Block(nn.Module):\n    pass\n\n\nclass GPT(nn.Module):\n"
    "    def __init__(self, n):\n        super().__init__()\n"
    "        self.transformer = nn.ModuleDict(dict(h=nn.ModuleList([Block() for _ in range(n)])))\n\n\n"
)


def _recorded(text: str, **setting: Scalar) -> Request:
    # What a run of the outcome records, so that it is left alone.
    lines = [number for number, line in enumerate(text.splitlines(), 1) if ".compile(" in line and " if " not in line]
    off = "default=False" in text or "action=" in text
    sites = [] if off else [Site("compile", "train.py", line) for line in lines]
    facts = Facts(device_name="NVIDIA H200", device_capability=(9, 0))
    return example_request("unfused-pointwise", text, sites=sites, facts=facts, setting=setting)


def _compiled(before: str, after: str, **setting: Scalar) -> Example:
    return Example(before, after, lambda text: _recorded(text, **setting))


FIXER = Fixer(
    name="compile-model",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch+idle.python",
    settings=settings,
    order=60,
    whole_step=True,
    examples=(
        _compiled(
            _HEAD + "model = Net().to('cuda')  # large\n" + _LOOP,
            _HEAD + "model = Net().to('cuda')  # large\nmodel.compile()\n" + _LOOP,
        ),
        _compiled(
            _AGENT + "agent = Agent().to('cuda')\n" + _ACTS,
            _AGENT + "agent = Agent().to('cuda')\nagent.act = torch.compile(agent.act)\n" + _ACTS,
        ),
        _compiled(
            _GPT + "model = GPT(4)\nmodel.to('cuda')\n" + _LOOP,
            _GPT + "model = GPT(4)\nmodel.to('cuda')\nfor block in model.transformer.h:\n    block.compile()\n" + _LOOP,
            compile="blocks",
        ),
        _compiled(
            _HEAD + _EITHER + "model = nn.parallel.DistributedDataParallel(model)\n" + _LOOP,
            _HEAD + _EITHER + "model.compile()\nmodel = nn.parallel.DistributedDataParallel(model)\n" + _LOOP,
        ),
        _compiled(
            _HEAD + "with torch.device('cuda'):\n    model = Net()\n    data = 1\n" + _LOOP,
            _HEAD
            + "with torch.device('cuda'):\n    model = Net()\n    data = 1\nmodel.compile(mode=\"reduce-overhead\")\n"
            + _LOOP,
            mode="reduce-overhead",
        ),
        Example(_HEAD + "model = torch.compile(Net())\n" + _LOOP, None, _recorded),
        Example(_HEAD + "model = Net()\nmodel.compile()\n" + _LOOP, None, _recorded),
        Example(
            _HEAD + "model = Net()\n" + _LOOP.replace("backward()", "backward(create_graph=True)"), None, _recorded
        ),
        Example(_HEAD + "model = torch.jit.script(Net())\n" + _LOOP, None, _recorded),
        Example(
            _HEAD.replace("    pass", "    def compile(self):\n        pass") + "model = Net()\n" + _LOOP,
            None,
            _recorded,
        ),
        Example(_RECURRENT + "model = Net()\n" + _LOOP, None, _recorded),
        Example("import re\nPATTERN = re.compile('x')\nfit(PATTERN)\n", None, _recorded),
    ),
)
