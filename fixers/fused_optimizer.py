"""Lets the optimizer do its step in a few fused kernels.

What it changes
    Passes `fused=True` where the program builds its Adam, AdamW, SGD or Adagrad. `foreach` gives way, since the two
    exclude each other. A program that chooses the fused form on CUDA alone chooses it on the CPU as well. For the
    Trainer of Hugging Face it is `optim="adamw_torch_fused"`. Of optimizers that have no fused form, `foreach=False`
    goes.

Why it helps
    Without it, torch updates parameters with a dozen elementwise operations for each tensor, or for each group of
    tensors. Every one of them is launched by the host and moves its operands through memory again. The fused form
    reads parameter, gradient and state once, writes them once, and does so in a few launches for the whole model.
    It exists for CUDA and, since torch 2.4, for the CPU.

Fix safety
    Rounding. The same formulas, evaluated in another order inside one kernel. Left alone: sparse gradients and
    `differentiable=True`, which the fused form does not take; optimizers that have no fused form and, with advice,
    classes of the program's own; SGD with momentum where no run showed that all parameters get a gradient in the
    first steps, since its fused form fails where one gets it later; models that are converted in mid-training to
    another number format; programs that print an optimizer or all of its options, which name its form. A checkpoint
    of the optimizer's state loads in either form, and brings that form along. With a GradScaler, the fused form
    takes the scale into its kernel, and the host need not wait; a state of the other form could then not step, so
    that programs which load one are left alone.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Fixer,
    Gate,
    Request,
    Site,
    example_request,
    lines_with,
    word_diffs,
)
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.flow import loops_around, scope_of, within
from diagnose.source.device.cuda_switches import also_without_cuda
from diagnose.source.optimizers.late_gradients import late_gradients
from diagnose.source.optimizers.optimizer_values import optimizers_of
from diagnose.source.optimizers.sparse_gradients import has_sparse_gradients
from diagnose.source.tree.arguments import argument, has_star, remove_argument, set_keywords
from diagnose.source.tree.edits import Source, Splice, call_at, call_name, parse, replace
from diagnose.source.tree.literals import literal as literal_of
from diagnose.source.tree.memo import files_with

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_FOREACH_ONLY = ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
_COMPLEX = frozenset(
    {"cfloat", "cdouble", "chalf", "complex32", "complex64", "complex128", "complex", "view_as_complex"}
)
"""Torch's complex number formats, and functions that make complex tensors."""
_FOREACH_POSITION = {"Adagrad": 6}
_MOMENTUM_POSITION = 2
"""The position of `momentum` among the parameters of `torch.optim.SGD`."""
_CASTS = ("double", "half", "float", "bfloat16", "to", "type")
"""Methods of a module that may convert its parameters to another number format."""
_FORMAT = re.compile(r"\b(?:float|double|half|bfloat)(?:16|32|64)?\b")
_FORMS = frozenset({"fused", "foreach"})
_FUSES = re.compile(r"""dict\(fused=True\)|\{["']fused["']: *True\}""")
_DOES_NOT = re.compile(r"""dict\(\)|\{\}|dict\(foreach=\w+\)|\{["']foreach["']: *\w+\}""")
"""Options that choose the form of an optimizer, and nothing else: a rate that goes with them would be another one."""


def rewrite(request: Request) -> Answer:
    """Set `fused=True` at every recorded optimizer of the user's that has that form."""
    edits: list[tuple[str, list[Splice]]] = []
    reasons: list[str] = []
    for site in _sites(request):
        found = _edit(request, site)
        if isinstance(found, str):
            reasons.append(found)
        else:
            edits += found
    files = request.edited(edits)
    against = _against(request) if files else None
    if against is not None:
        return Advice(against)
    if files:
        return Edits(files, "use the fused form of the optimizer")
    return Advice(" ".join(dict.fromkeys(reasons))) if reasons else None


def _against(request: Request) -> str | None:
    """Return what the program does that the form of an optimizer shows in."""
    optimizers = optimizers_of(request.sources)
    if optimizers.shown is not None:
        return (
            f"{optimizers.shown} shows the optimizer's options, which would say fused=True: pass it where that may be."
        )
    scales = any(one.may_call("GradScaler") for one in optimizers.sources.values())
    loaded = optimizers.loaded if scales else None
    if loaded is not None:
        return (
            f"{loaded} may load the state of an optimizer: a state of another form brings its form along, and with a "
            "GradScaler its step then fails. Set param_group['fused'] = True after loading, then pass fused=True."
        )
    return None


def _sites(request: Request) -> list[Site]:
    """The recorded optimizers, else all of torch's that have the form and that the text builds."""
    sites = [site for site in request.sites if site.kind == "optimizer"]
    if sites:
        return sites
    built = []
    for path, source in files_with(request.sources, "optim"):
        for call in source.calls_below("torch.optim."):
            if _kind(source, call) in _FUSED:
                built.append(Site("optimizer", path, source.lines_of(call)[0]))
    return built


def _kind(source: Source, call: cst.Call) -> str | None:
    """The name of torch's optimizer that a call builds."""
    if not source.is_called(call.func, "torch.optim."):
        return None
    return next(name.rpartition(".")[2] for name in source.names(call.func) if name.startswith("torch.optim."))


def _edit(request: Request, site: Site) -> list[tuple[str, list[Splice]]] | str:
    """The edits of one site, or why there are none; an empty list where it is fused already."""
    where = f"{site.file}:{site.line}"
    name = str(site.arguments.get("name", ""))
    if site.arguments.get("fused") is True:
        return []
    if not site.owned:
        return _in_a_library(request, where, name)
    source = parse(request.sources.get(site.file, ""))
    own = _own_class(source, site) if source is not None else None
    if source is not None and own is not None:
        return (
            f"{site.file}:{source.lines_of(own)[0]} has {own.name.value}, an optimizer of the program's own: "
            "torch.optim.AdamW(…, fused=True) may take its place where it computes the same."
        )
    call = call_at(source, site.line, {*_FUSED, *_FOREACH_ONLY, name} - {""}) if source is not None else None
    if source is not None and call is None:
        row = _row(source, site.line)
        if row:
            each_of = [_set_fused(request, site, source, each, _kind(source, each) or "") for each in row]
            reasons = [each for each in each_of if isinstance(each, str)]
            return reasons[0] if reasons else [(site.file, edits) for edits in each_of if not isinstance(edits, str)]
    if source is None or call is None:
        return f"{where} is not a line that we can edit: pass fused=True to {name or 'the optimizer'} there."
    kind = _kind(source, call)
    if kind is None:
        return (
            f"{where} builds {name or 'an optimizer'}, which is not torch's own: torch.optim.AdamW(…, fused=True) is."
        )
    if kind not in _FUSED:
        foreach = argument(call, "foreach")
        if foreach is not None and source.code(foreach.value) == "False":
            return [(site.file, [remove_argument(source, call, foreach)])]
        return f"{where}: {kind} has no fused form."
    kept = _kept_elsewhere(request, site, source, call)
    if kept is not None:
        return [kept]
    found = _set_fused(request, site, source, call, kind)
    return found if isinstance(found, str) else [(site.file, found)]


def _row(source: Source, line: int) -> list[cst.Call]:
    """Optimizers that one line builds, as `a, b = Adam(…), Adam(…)` does: a recorded line is that of each."""
    found = [
        call
        for call in source.every(cst.Call)
        if _kind(source, call) in _FUSED and source.lines_of(call)[0] <= line <= source.lines_of(call)[1]
    ]
    return found if len(found) > 1 and all(not has_star(call) for call in found) else []


def _kept_elsewhere(request: Request, site: Site, source: Source, call: cst.Call) -> tuple[str, list[Splice]] | None:
    """The edit of an option, a constant or a config file that says `fused=…` with False, where nothing else differs."""
    given = argument(call, "fused")
    if given is None or source.code(given.value) in {"True", "False", "None"} or has_star(call):
        return None
    if argument(call, "foreach") or argument(call, "differentiable") or has_sparse_gradients(request.sources):
        return None
    setting = request.set_by(given.value, site.file, source, False)
    return (setting.path, [setting.to(True)]) if setting is not None and setting.value is False else None


def _set_fused(request: Request, site: Site, source: Source, call: cst.Call, kind: str) -> list[Splice] | str:
    where = f"{site.file}:{site.line}"
    if has_sparse_gradients(request.sources):
        return f"{where}: the fused form does not take sparse gradients, and the program has a sparse embedding."
    if (parameter := _complex_parameter(request)) is not None:
        return f"{where}: the fused form takes no complex numbers, and `{parameter}` makes a parameter of them."
    if (cast := _converted_later(source, call)) is not None:
        return f"{where}: the fused form takes one number format, and `{cast}` converts parameters in mid-training."
    if _lightning_refuses(request):
        return f"{where}: in mixed precision, Lightning does not clip the gradients of a fused optimizer."
    late = late_gradients(request.sources, request.sites, site) if _has_momentum(call, kind) else None
    if late is not None:
        return f"{late}: the fused form of SGD with momentum fails where one gets its first gradient later than others."
    if has_star(call):
        return _over_options(site, source, call)
    for keyword, literal in (("differentiable", "False"), ("foreach", None), ("fused", "False")):
        given = argument(call, keyword, _FOREACH_POSITION.get(kind) if keyword == "foreach" else None)
        code = source.code(given.value) if given is not None else None
        if keyword == "fused" and code == "True":
            return []
        if code is not None and code not in ({literal} if literal else {"True", "False", "None"}) | {"None"}:
            chosen = also_without_cuda(source, given.value) if keyword == "fused" and given and _on_cpu(site) else None
            if chosen is not None:
                return [chosen]
            return f"{where} passes {keyword}={code}: decide there whether fused=True may take its place."
    position = _FOREACH_POSITION.get(kind)
    if position is not None and argument(call, "foreach", position) is not argument(call, "foreach"):
        return f"{where} passes foreach by its position: name it, then fused=True can take its place."
    return set_keywords(source, call, {"fused": "True"}, remove=["foreach"])


def _has_momentum(call: cst.Call, kind: str) -> bool:
    """Whether an optimizer is SGD that may have momentum."""
    given = argument(call, "momentum", _MOMENTUM_POSITION)
    told = literal_of(given.value) if given is not None else None
    return kind == "SGD" and (has_star(call) or (given is not None and (told is None or told.value != 0)))


def _complex_parameter(request: Request) -> str | None:
    """The first code that makes a parameter of complex numbers."""
    for _, source in files_with(request.sources, *_COMPLEX):
        for call in source.every(cst.Call):
            if call_name(call) != "Parameter":
                continue
            for node in source.every(cst.Attribute, call):
                if node.attr.value in _COMPLEX:
                    return source.code(call)
    return None


def _converted_later(source: Source, optimizer: cst.Call) -> str | None:
    """The first code that converts a model's parameters while the optimizer, which is built before it, is in use."""
    built = source.parent(optimizer)
    name = source.code(built.targets[0].target) if isinstance(built, cst.Assign) else ""
    uses = [source.lines_of(each)[0] for each in source.named(name.rpartition(".")[2])] if name else []
    models = {
        source.code(call.func.value)
        for call in source.calls_named("parameters")
        if isinstance(call.func, cst.Attribute)
    }
    for call in (each for name in _CASTS for each in source.calls_named(name)):
        of = call.func.value if isinstance(call.func, cst.Attribute) else None
        loops = loops_around(source, call)
        if of is None or source.code(of) not in models or any(within(source, optimizer, loop) for loop in loops):
            continue
        line = source.lines_of(call)[0]
        same = scope_of(source, call) is scope_of(source, optimizer) and line > source.lines_of(optimizer)[1]
        if not loops and not (same and max(uses, default=0) > line):
            continue
        if call_name(call) not in {"to", "type"} or _FORMAT.search(source.code(call)):
            return source.code(call)
    return None


def _over_options(site: Site, source: Source, call: cst.Call) -> list[Splice] | str:
    """`**options`: put ours over them, where the run recorded that nothing in them stands against it."""
    stars = [arg for arg in call.args if arg.star == "**"]
    chosen = _chosen_on_cpu(site, source, stars[0].value) if len(stars) == 1 else None
    if chosen is not None:
        return [chosen]
    recorded = {"fused", "foreach", "differentiable"} <= set(site.arguments)
    against = any(site.arguments.get(name) for name in ("foreach", "differentiable"))
    code = source.code(stars[0].value) if len(stars) == 1 else ""
    made = [each for each in source.every(cst.Assign) if code in {source.code(one.target) for one in each.targets}]
    decides = any("fused" in source.code(each.value) for each in made)
    named = any(arg.keyword is not None and arg.keyword.value in _FORMS for arg in call.args)
    if not recorded or against or not code or decides or named or any(arg.star == "*" for arg in call.args):
        return f"{site.file}:{site.line} takes its arguments from elsewhere: put fused=True where they are made."
    return [replace(source, stars[0].value, f'{{**{code}, "fused": True}}')]


def _on_cpu(site: Site) -> bool:
    """Whether all that the optimizer updates lies in the host's memory."""
    return site.arguments.get("devices") == "cpu"


def _chosen_on_cpu(site: Site, source: Source, options: cst.BaseExpression) -> Splice | None:
    """The edit of `options = dict(fused=True) if … == "cuda" else dict()`, where that is all that chooses."""
    bound = binding_of(source, options) if isinstance(options, cst.Name) and _on_cpu(site) else None
    choice = bound.value if bound is not None else None
    if not isinstance(choice, cst.IfExp) or not _DOES_NOT.fullmatch(source.code(choice.orelse)):
        return None
    return also_without_cuda(source, choice) if _FUSES.fullmatch(source.code(choice.body)) else None


def _in_a_library(request: Request, where: str, name: str) -> list[tuple[str, list[Splice]]] | str:
    """The argument of Hugging Face's Trainer, which builds the optimizer itself."""
    trainers = [trainer for trainer in request.trainers() if trainer.knows("optimizer")]
    chosen = trainers[0].options.value("optimizer") if len(trainers) == 1 else "another"
    if chosen not in {None, "adamw_torch", "adamw_hf"}:
        return f"{where} is not a line that we can edit: pass fused=True to {name or 'the optimizer'} there."
    placed = trainers[0].options.place("optimizer", "adamw_torch_fused")
    return placed.reason or [(path, list(edits)) for path, edits in placed.edits.items()]


def _lightning_refuses(request: Request) -> bool:
    """Whether Lightning clips gradients in mixed precision, which it does not do for fused optimizers."""
    return any(
        trainer.options.value("gradient_clip_val") and "16-mixed" in str(trainer.options.value("precision"))
        for trainer in request.trainers()
        if trainer.library == "lightning"
    )


def _own_class(source: Source, site: Site) -> cst.ClassDef | None:
    """The program's own class in whose constructor an optimizer was recorded, as its base class was built."""
    for written in source.every(cst.ClassDef):
        first, last = source.lines_of(written)
        if written.name.value == site.arguments.get("name") and first <= site.line <= last:
            return written
    return None


def _recorded(text: str) -> Request:
    line = lines_with(text, "model.parameters()")[0]
    return example_request("slow-optimizer", text, sites=[Site("optimizer", "train.py", line)])


_IMPORT = "import torch\n"


FIXER = Fixer(
    name="fused-optimizer",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.sync+idle.dispatch+idle.launch",
    order=50,
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "opt = torch.optim.AdamW(model.parameters(), lr=3e-4{+, fused=True+})  # decays\n",
            _IMPORT + "opt = torch.optim.SGD(model.parameters(), {-foreach=False-}{+fused=True+}, lr=0.1)\n",
            "from torch.optim import Adam as A\nopt = A(\n    (model.parameters()),\n    lr=1e-3,  # tuned{+\n"
            "    fused=True,+}\n)\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters(), fused={-False-}{+True+})\n",
            _IMPORT
            + "opt = torch.optim.Adam{+(+}(p for p in model.parameters() if p.requires_grad){+, fused=True)+}\n",
            _IMPORT + "opt = torch.optim.RMSprop(model.parameters(){-, foreach=False-})\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters(), fused=True)\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters(), differentiable=True)\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters(), foreach=choose())\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters(), **extra)\n",
            _IMPORT + "opt = torch.optim.LBFGS(model.parameters())\n",
            "from transformers import AdamW\nopt = AdamW(model.parameters())\n",
            "class Adam:\n    pass\n\nopt = Adam(model.parameters())\n",
            _IMPORT + "table = torch.nn.Embedding(9, 9, sparse=True)\nopt = torch.optim.SGD(model.parameters())\n",
            _IMPORT
            + "table = torch.nn.Embedding(9, 9, sparse=samples > 0)\nopt = torch.optim.SGD(model.parameters())\n",
            _IMPORT + "table = torch.nn.Embedding(9, 9)\nopt = torch.optim.SGD(model.parameters())\n"
            "for epoch in range(9):\n    table.sparse = epoch > 5\n    train(model, opt)\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters())\nfor epoch in range(9):\n    if epoch == 5:\n"
            "        model.double()\n    train(model, opt)\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters())\ntrain(model, opt)\nmodel.to(torch.float64)\n"
            "train(model, opt)\n",
            _IMPORT + "for fold in range(9):\n    model.double()\n"
            "    opt = torch.optim.Adam(model.parameters(){+, fused=True+})\n    train(model, opt)\n",
            _IMPORT + "opt = torch.optim.Adam(model.parameters(){+, fused=True+})\ntrain(model, opt)\nmodel.half()\n",
            "from library import Table\n" + _IMPORT + "table = Table(sparse=True)\n"
            "opt = torch.optim.SGD(model.parameters())\n",
            _IMPORT + "class Flow(Data):\n    def __init__(self):\n        super().__init__(sparse=True)\n\n\n"
            "class Data:\n    pass\n\n\nopt = torch.optim.SGD(model.parameters(){+, fused=True+})\n",
            _IMPORT + "def table(sparse=False):\n    return torch.nn.Embedding(9, 9, sparse=sparse)\n\n\n"
            "opt = torch.optim.SGD(model.parameters(){+, fused=True+})\n",
        ),
    ),
)
