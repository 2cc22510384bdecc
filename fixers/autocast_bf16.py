"""Runs the forward pass in bfloat16 where that is safe, through autocast.

What it changes
    Puts `with torch.autocast(…, dtype=torch.bfloat16):` around the forward pass and the loss of each training step; the
    backward pass follows the formats of the forward one and stays outside, as torch asks. The device is named as the
    program names it. Where the program has autocast already but keeps it in float32 (a `nullcontext`, a dtype or a flag
    that it sets), that setting is changed instead. In programs of Lightning, Accelerate and the Trainer of Hugging
    Face, the change goes into their own argument.

Why it helps
    Tensor cores multiply bfloat16 at twice the rate of TF32 and many times that of plain float32, and
    activations take half the memory and half the time to move. Autocast leaves parameters, sums, normalisations and
    losses in float32.

Fix safety
    Training: products and activations keep 8 bits of mantissa, so the course of the training changes, if seldom its
    end. It is tried only when that is allowed. bfloat16 has float32's range, so no GradScaler is needed. Left alone:
    programs that choose number formats themselves, float16 with a GradScaler, `BCELoss` (which refuses autocast), CUDA
    graphs that the program captures, gradients that are taken on the way to the loss, values that go to NumPy, which
    has no bfloat16, logarithms of `1 - p`, where 8 bits round `p` to 1, and programs that move no parameters. It does
    all that allowing TF32 does for products, and more; where both are possible, this one is tried first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.rewrite.with_blocks import wrap_statements
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.switches import Turn
from diagnose.source.settings.trainers import Trainer
from diagnose.source.training.autocast_refusals import program_refuses, region_refuses
from diagnose.source.training.device_type import device_type
from diagnose.source.training.forward_region import ForwardRegion, forward_region
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import (
    Source,
    Splice,
    call_name,
    ensure_import,
    free_name,
    insert_before,
    replace,
    splice,
)
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.text_lines import any_matches

_FIRST_WITH_BFLOAT16 = (8, 0)
_ON = "let the program's own autocast be on, in bfloat16"
_ON_FLOAT16 = "let the program's own autocast be on, in float16 with its GradScaler"
_ON_EITHER = "let the program's own autocast be on, in the format of 16 bits that it chooses, with its GradScaler"
_PRECISION = re.compile(r"autocast|[Ss]caler|\bamp\b|bfloat16|float16|half")
"""The subjects of lines that a switch of the precision may decide on."""
_UPDATES = re.compile(r"\boptim|\.step\(|\.grad\b")
_SCALER = re.compile(r"\b\w*(?:GradScaler|NativeScaler)\(")


def rewrite(request: Request) -> Answer:
    """Autocast where the program's own switch for it is, else around the forward pass."""
    facts = request.facts
    if facts.autocast_dtype == "bfloat16":
        return None
    sources = parse_all(request.sources)
    if not _has_bfloat16(facts):
        own = next((answer for answer in _switch(request, sources) if isinstance(answer, Edits)), None)
        by_hand = f"{facts.device_name} has no bfloat16; autocast to float16, with a GradScaler, is for it."
        return own if own is not None and facts.autocast_dtype != "float16" else Advice(by_hand)
    for library in _library(request):
        return library
    scaled = any(site.kind == "GradScaler" and site.arguments.get("enabled") is not False for site in request.sites)
    if facts.autocast_dtype == "float16" or (scaled and facts.autocast_dtype is not None):
        return Advice(
            "The program trains in float16: bfloat16 is as fast and needs no GradScaler; change both by hand."
        )
    for switch in _switch(request, sources):
        return switch
    return _around(request, sources)


def _library(request: Request) -> Iterator[Answer]:
    """Yield what to do with the argument of a library that holds the training loop; nothing where none does."""
    for trainer in request.trainers():
        options, name = trainer.options, trainer.options.its("precision")
        value = options.value("precision")
        wanted = f"{name}={trainer.bfloat16!r}".replace("'", '"')
        if value is True or "bf16" in str(value):
            yield None
        elif options.value("fp16") or "16" in str(value):
            yield Advice(f"{trainer.where} trains in float16 (fp16): {wanted} in its place needs no loss scaling.")
        elif trainer.is_given("precision") and not trainer.is_float32(value):
            yield Advice(f"{trainer.where} takes {name} from elsewhere: set it to {trainer.bfloat16!r} there.")
        elif "lightning" in trainer.library and (reason := _lightning_refuses(request, trainer)):
            yield Advice(f"{trainer.where} could have {wanted}, but {reason}.")
        else:
            placed = options.place("precision", trainer.bfloat16)
            if placed.reason:
                yield Advice(placed.reason)
            else:
                yield Edits(request.edited(placed.edits.items()), f"train in bfloat16 through {wanted}")


def _lightning_refuses(request: Request, trainer: Trainer) -> str | None:
    """Return what Lightning does not take beside mixed precision."""
    if argument(trainer.options.node, "plugins") is not None:
        return "it has plugins, of which one may set the precision: decide there"
    fused = any(re.search(r"fused\s*=\s*True", text) for text in request.sources.values())
    if fused and trainer.options.value("gradient_clip_val"):
        return "Lightning does not clip the gradients of a fused optimizer then: take fused=True out with it"
    return None


def _switch(request: Request, sources: Mapping[str, Source]) -> Iterator[Answer]:
    """Yield what to do with autocast that is there; nothing where there is none."""
    found = [
        (path, source, call)
        for path, source in sorted(sources.items(), key=lambda one: one[0] != request.entry)
        if "autocast" in source.words
        for call in source.calls_named("autocast", "partial")
        if _opens_autocast(source, call)
    ]
    for path, source, call in found:
        turns, format_ = _turns(request, path, source, call)
        if turns:
            on = {"bfloat16": _ON, "float16": _ON_FLOAT16}
            yield Edits(request.turned(turns), on.get(format_, _ON_EITHER))
    for path, source, call in found:
        if call_name(call) == "autocast":
            yield _switched(request, path, source, call)


def _opens_autocast(source: Source, call: cst.Call) -> bool:
    """`autocast(…)`, also where it is kept for later: `partial(torch.autocast, …)`."""
    if call_name(call) == "partial" and call.args:
        return source.code(call.args[0].value).rpartition(".")[2] == "autocast"
    return call_name(call) == "autocast"


def _turns(request: Request, path: str, source: Source, call: cst.Call) -> tuple[tuple[Turn, ...], str]:
    """Return what the program is to be told so that autocast is open, and the number format that it then computes in.

    The format is empty where a condition chooses between two that nobody can follow. In float16, or in either, only
    where the program scales its losses. Nothing where no setting of the program decides.
    """
    switches = request.switches(_PRECISION)
    enabled, dtype = argument(call, "enabled"), argument(call, "dtype", None if call_name(call) == "partial" else 1)
    reached = switches.reach(path, source, call)
    opened = switches.make(enabled.value, True, path, source) if enabled is not None else ()
    if reached is None or opened is None:
        return (), ""
    bfloat16: tuple[Turn, ...] | None = None
    either = False
    chosen = _chosen_by(source, dtype.value) if dtype is not None else None
    if chosen is not None:
        bfloat16 = switches.equal(chosen, "bfloat16", path, source)
    elif dtype is not None:
        bfloat16 = switches.bind(dtype.value, lambda value: source.code(value).endswith("bfloat16"), path, source)
        either = bfloat16 == () and switches.bind(dtype.value, partial(_is_no_bfloat16, source), path, source) == ()
        float16 = switches.bind(dtype.value, partial(_is_float16, source), path, source)
        if float16 and {*float16} <= {*reached, *opened}:
            bfloat16 = None  # the same setting chooses: `torch.float16 if args.amp else torch.bfloat16`
    scales = any_matches(_SCALER, request.sources.values())
    if bfloat16 is not None and _has_bfloat16(request.facts) and (scales or not either):
        return tuple(dict.fromkeys((*reached, *opened, *bfloat16))), "" if either else "bfloat16"
    plain = dtype is None or (chosen is None and "float32" not in source.code(dtype.value))
    if not plain or not scales:
        return (), ""
    known = dtype is None or switches.bind(dtype.value, partial(_is_float16, source), path, source) is not None
    return tuple(dict.fromkeys((*reached, *opened))), "float16" if known else ""


def _is_no_bfloat16(source: Source, value: cst.BaseExpression) -> bool:
    """Whether a value is no bfloat16, and chosen by more than that the device lacks it."""
    conditions = (each.test for each in source.ancestors(value) if isinstance(each, cst.If | cst.IfExp))
    lacks = any("is_bf16_supported" in source.code(each) for each in conditions)
    return not lacks and not source.code(value).endswith("bfloat16")


def _is_float16(source: Source, value: cst.BaseExpression) -> bool:
    return source.code(value).rpartition(".")[2] in {"float16", "half"}


def _has_bfloat16(facts: Facts) -> bool:
    return facts.device_capability is None or facts.device_capability >= _FIRST_WITH_BFLOAT16


def _switched(request: Request, path: str, source: Source, call: cst.Call) -> Answer:
    dtype, enabled = argument(call, "dtype", 1), argument(call, "enabled")
    single = dtype is not None and not isinstance(dtype.value, cst.IfExp)
    bfloat16 = single and dtype is not None and source.code(dtype.value).endswith("bfloat16")
    if bfloat16 and enabled is None:
        return None
    found: Setting | None = None
    plain: Scalar = None
    wanted: Scalar = None
    decides: cst.BaseExpression | None = None
    if enabled is not None and bfloat16:
        decides = enabled.value
        found, plain, wanted = request.set_by(decides, path, source, False), False, True
    elif enabled is None and dtype is not None:
        decides = name = _chosen_by(source, dtype.value)
        literal = _value_of(source, name) if name is not None else None
        typed = name is not None and request.told(name) is not None
        if isinstance(literal, cst.SimpleString) and literal.evaluated_value == "float32" and not typed:
            code = source.code(literal).replace("float32", "bfloat16")
            return Edits({path: splice(source.text, [replace(source, literal, code)])}, _ON)
        found = request.set_by(name, path, source, "float32") if name is not None else None
        plain, wanted = "float32", "bfloat16"
    if found is None or found.value != plain:
        where = f"{path}:{source.lines_of(call)[0]} has autocast already"
        word = request.told(decides) if decides is not None else None
        if word is not None:
            return Advice(f"{where}, and the command line says `{word}`: choose bfloat16 there.")
        return Advice(f"{where}: let it be on, with dtype=torch.bfloat16 and no GradScaler.")
    return Edits(request.edited([(found.path, [found.to(wanted)])]), _ON)


def _chosen_by(source: Source, dtype: cst.BaseExpression) -> cst.BaseExpression | None:
    """`name` where a dtype is `{"bfloat16": torch.bfloat16, …}[name]` or `getattr(torch, name)`."""
    value = _value_of(source, dtype)
    if isinstance(value, cst.Subscript) and isinstance(value.slice[0].slice, cst.Index):
        return value.slice[0].slice.value
    if isinstance(value, cst.Call) and source.code(value.func) == "getattr" and len(value.args) == 2:
        return value.args[1].value
    return None


def _value_of(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what a variable was bound to, once; any other expression itself."""
    if not isinstance(node, cst.Name):
        return node
    binding = binding_of(source, node)
    return binding.value if binding is not None else None


def _around(request: Request, sources: Mapping[str, Source]) -> Answer:
    """Autocast around the forward pass and the loss of the training steps that ran."""
    if not any_matches(_UPDATES, request.sources.values()):
        return None  # gradients that no parameter is moved by show what a model looks at: nothing trains
    if (refused := program_refuses("\n".join(request.sources.values()))) is not None:
        return Advice(f"Autocast to bfloat16 is not put into this program: {refused}.")
    wrapped: list[tuple[str, list[Splice]]] = []
    reasons: list[str] = []
    for path, steps in _steps(request, sources).items():
        done: list[cst.CSTNode] = []
        for step in steps:
            edits = _wrap(sources, step, done)
            if isinstance(edits, str):
                reasons.append(f"{path}:{step.source.lines_of(step.backward)[0]}: {edits}.")
            else:
                wrapped.append((path, edits))
    if reasons:
        by_hand = 'Put `with torch.autocast("cuda", dtype=torch.bfloat16):` around forward pass and loss by hand'
        return Advice(f"{by_hand}: {' '.join(reasons)}")
    return request.answer(wrapped, "compute forward pass and loss in bfloat16 where autocast holds it safe")


def _steps(request: Request, sources: Mapping[str, Source]) -> dict[str, list[TrainingStep]]:
    """Return the steps by file: those that the run recorded, else those of the script, else all."""
    steps = training_steps(request.sources, request.sites)
    ran = [(site.file, site.line) for site in request.sites if site.kind == "backward"]
    seen = [step for step in steps if any(_covers(step, *place) for place in ran)]
    chosen = seen or [step for step in steps if step.path == request.entry] or list(steps)
    return {path: [step for step in chosen if step.path == path] for path in sources}


def _covers(step: TrainingStep, path: str, line: int) -> bool:
    first, last = step.source.lines_of(step.backward)
    return step.path == path and first <= line <= last


def _wrap(sources: Mapping[str, Source], step: TrainingStep, done: list[cst.CSTNode]) -> list[Splice] | str:
    source = step.source
    region = forward_region(step)
    if isinstance(region, str):
        return region
    if any(statement in done for statement in region.statements):
        return [] if all(statement in done for statement in region.statements) else "two losses share a part of it"
    if (reason := region_refuses(sources, step, region)) is not None:
        return reason
    done += region.statements
    torch, imports = ensure_import(source, "torch")
    header = f"with {torch}.autocast({device_type(step)}, dtype={torch}.bfloat16):"
    context = _null_context(source, region)
    if context is not None:
        return [*imports, replace(source, context, header.removeprefix("with ").removesuffix(":"))]
    if region.expression is None:
        return [*imports, *wrap_statements(source, region.statements, header)]
    loss = free_name(source, "loss")
    code = source.code(region.expression)
    lines = [header, f"{source.indentation}{loss} = {code}"]
    return [*imports, insert_before(source, region.backward, lines), replace(source, region.expression, loss)]


def _null_context(source: Source, region: ForwardRegion) -> cst.Call | None:
    """The `nullcontext()` of a variable that the program already keeps around its forward pass, and nothing else."""
    for statement in region.statements:
        for around in (statement, *source.ancestors(statement)):
            items = around.items if isinstance(around, cst.With) else ()
            for item in items:
                value = _value_of(source, item.item) if isinstance(item.item, cst.Name) else None
                if isinstance(value, cst.Call) and call_name(value) == "nullcontext" and not value.args:
                    return value
    return None


_IMPORT = "import torch\nimport torch.nn.functional as F\n"
_LOOP = "for x, y in loader:\n"
_WITH = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
_REST = "    loss.backward()\n    optimizer.step()\n"


def _recorded(text: str) -> Request:
    return example_request("fp32-matmul", text, facts=Facts(autocast_dtype="none", device_capability=(9, 0)))


def _left_alone(text: str) -> Example:
    return Example(text, None, _recorded)


FIXER = Fixer(
    name="autocast-bf16",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    rounds_to="bf16",
    mechanism="compute",
    order=40,
    whole_step=True,
    completes=("allow-tf32",),
    examples=(
        _left_alone(
            _IMPORT + _LOOP + "    value = model(x)\n    following = torch.zeros(8)\n"
            "    following[going_on] = target(y).max(1).values\n    loss = F.mse_loss(value, following)\n" + _REST
        ),
        Example(
            before=_IMPORT + _LOOP + "    # Forward\n    out = model(x)  # logits\n    loss = F.cross_entropy(out, y)\n"
            "    optimizer.zero_grad()\n" + _REST,
            after=_IMPORT + _LOOP + "    # Forward\n    " + _WITH + "        out = model(x)  # logits\n"
            "        loss = F.cross_entropy(out, y)\n    optimizer.zero_grad()\n" + _REST,
            request=_recorded,
        ),
        Example(
            before="import torch\n\n\ndef train(model, loader, optimizer, device):\n    for x, y in loader:\n"
            "        x = x.to(device)\n        loss = (model(x) - y).square().mean()\n        loss.backward()\n"
            "        optimizer.step()\n\n\ndevice = torch.device('cuda')\ntrain(Net(), data, SGD(), device)\n",
            after="import torch\n\n\ndef train(model, loader, optimizer, device):\n    for x, y in loader:\n"
            "        x = x.to(device)\n        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            loss = (model(x) - y).square().mean()\n        loss.backward()\n"
            "        optimizer.step()\n\n\ndevice = torch.device('cuda')\ntrain(Net(), data, SGD(), device)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + _LOOP + "    F.mse_loss(model(x), y).backward()\n    optimizer.step()\n",
            after=_IMPORT + _LOOP + "    " + _WITH + "        loss = F.mse_loss(model(x), y)\n" + _REST,
            request=_recorded,
        ),
        Example(
            before="import torch\nfrom contextlib import nullcontext\nctx = nullcontext()\n"
            + _LOOP
            + "    with ctx:\n        logits, loss = model(x, y)\n"
            + _REST,
            after="import torch\nfrom contextlib import nullcontext\n"
            'ctx = torch.autocast("cuda", dtype=torch.bfloat16)\n'
            + _LOOP
            + "    with ctx:\n        logits, loss = model(x, y)\n"
            + _REST,
            request=_recorded,
        ),
        Example(
            before="from accelerate import Accelerator\naccelerator = Accelerator()\n",
            after='from accelerate import Accelerator\naccelerator = Accelerator(mixed_precision="bf16")\n',
            request=_recorded,
        ),
        _left_alone(_IMPORT + _LOOP + "    loss = torch.nn.BCELoss()(model(x), y)\n" + _REST),
        _left_alone(_IMPORT + "model = model.bfloat16()\n" + _LOOP + "    loss = model(x).sum()\n" + _REST),
        _left_alone(
            _IMPORT
            + _LOOP
            + "    with torch.autocast('cuda', enabled=args.amp):\n        loss = model(x).sum()\n"
            + _REST
        ),
        _left_alone(_IMPORT + _LOOP + "    out = model(x)\n    loss = out.sum()\n    log(out.cpu().numpy())\n" + _REST),
        _left_alone("from lightning import Trainer\ntrainer = Trainer(precision='bf16-mixed')\n"),
        _left_alone(_IMPORT + _LOOP + "    loss = model(x).sum()\n"),
    ),
)
