"""Switches off what was switched on to find a fault.

What it changes
    Takes `torch.autograd.set_detect_anomaly(True)` out of the program, the contexts `detect_anomaly()` and
    `emit_nvtx()` from around its code, `detect_anomaly=True` out of a trainer's arguments, and the lines that set
    `CUDA_LAUNCH_BLOCKING` or `TORCH_DISTRIBUTED_DEBUG`. In the code that runs in every step, `gradcheck` goes, and
    `assert` on a tensor becomes `torch._assert_async`, which asks the same without waiting for the answer. Hooks that
    only look for NaN, and say so by an error, are no longer registered.

Why it helps
    Anomaly detection tests every gradient and keeps the stack of every operation. With `CUDA_LAUNCH_BLOCKING` the
    host waits for each kernel. A check of a tensor makes the host wait until the device has computed it.

Fix safety
    Bitwise: none of these takes part in what is computed. A program that relied on them to stop at a NaN goes on; the
    checks that are asked without waiting still end the program, with an error of the device and some steps later. Left
    alone, with its line: what raises an error that the program may catch, around it or around any call that leads to
    it; a check whose message is computed, or which a `finally` follows; a hook that prints. Deterministic
    settings are left alone: they are a choice. So is a switch that comes from the command line or stands under a
    condition, and a profiler whose results are used, with advice; and a hook that raises an error of the program's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import (
    ERRORS_OF_CHECKS,
    Advice,
    Answer,
    Edits,
    EveryStep,
    Example,
    Fixer,
    Gate,
    Request,
    Source,
    Splice,
    Stretch,
    argument,
    call_name,
    chosen_by,
    ensure_import,
    example_request,
    is_watching_hook,
    remove_argument,
    remove_statements,
    replace,
    splice,
    unwrap,
    ways_to,
    who_catches,
    without_import,
)

_SWITCH = re.compile(r"(^|\.)set_detect_anomaly$")
_CONTEXT = re.compile(r"(^|\.)(set_detect_anomaly|detect_anomaly|emit_nvtx|emit_itt)$")
_PROFILER = re.compile(r"^torch\.(profiler|autograd\.profiler)\.profile$")
_VARIABLES = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "AMD_SERIALIZE_KERNEL", "HIP_LAUNCH_BLOCKING")
_CHECK = re.compile(r"\b(isnan|isinf|isfinite|allclose|equal)\(")
_ABOUT = r"debug|anomal|\bnan\b|launch|blocking|check|hook|profil"


@dataclass
class _Plan:
    """What goes, in one file."""

    source: Source
    statements: list[cst.BaseSmallStatement | cst.BaseCompoundStatement] = field(default_factory=list)
    splices: list[Splice] = field(default_factory=list)
    removed: dict[str, None] = field(default_factory=dict)
    """What was switched off, for the summary."""
    reasons: list[str] = field(default_factory=list)


def rewrite(request: Request) -> Answer:
    """Switch off everything that is known to be left from a hunt for a fault."""
    code = EveryStep(request.sources, request.finding.where)
    plans = {path: _Plan(source) for path, source in code.sources.items()}
    caught = _who_catches_steps(code)
    for plan in plans.values():
        _settings(plan, caught)
    for stretch, call in code.calls():
        _gradcheck(code, plans[stretch.path], call)
    for stretch in code.stretches:
        _assertions(code, plans[stretch.path], stretch)
    files: dict[str, str] = {}
    for path, plan in plans.items():
        if plan.statements or plan.splices:
            splices = plan.splices + remove_statements(plan.source, plan.statements, _ABOUT)
            files[path] = splice(plan.source.text, without_import(plan.source, splices, "os"))
    if files:
        what = list(dict.fromkeys(name for plan in plans.values() for name in plan.removed))
        return Edits(files, f"switch off what was left from debugging: {', '.join(what)}")
    reasons = [f"{path}:{reason}" for path, plan in plans.items() for reason in plan.reasons]
    if not reasons and "block" in request.finding.summary:
        return Advice("Nothing in the program sets CUDA_LAUNCH_BLOCKING: unset it in the shell that starts it.")
    return Advice(" ".join(reasons)) if reasons else None


def _who_catches_steps(code: EveryStep) -> str | None:
    """The line of a statement that may catch the error of a step, which anomaly detection or a hook may raise."""
    trained = ("backward", "manual_backward", "fit", "train")
    for path, source in code.sources.items():
        for call in source.every(cst.Call):
            if call_name(call) in trained:
                found = who_catches(code.sources, path, call, ERRORS_OF_CHECKS)
                if found is not None:
                    return f"{found[0]}:{found[1].lines_of(found[2])[0]}"
    return None


def _settings(plan: _Plan, caught: str | None) -> None:
    """Switches, contexts, environment variables and hooks, wherever they are.

    `caught`: where the program may catch what anomaly detection and hooks raise.
    """
    source = plan.source
    for call in source.every(cst.Call):
        statement = source.parent(call)
        line = source.lines_of(call)[0]
        names = {*source.names(call.func), source.code(call.func)}
        given = argument(call, "detect_anomaly")
        raises = given is not None or any("anomaly" in name for name in names) or is_watching_hook(source, call)
        if raises and caught is not None:
            plan.reasons.append(f"{line} may raise an error that {caught} catches: leave it off by hand.")
            continue
        if any(_SWITCH.search(name) for name in names) and isinstance(statement, cst.Expr):
            _switch(plan, call, statement, line)
        elif given is not None and source.code(given.value) == "True":
            plan.splices.append(remove_argument(source, call, given))
            plan.removed["anomaly detection"] = None
        elif isinstance(statement, cst.WithItem) and any(_CONTEXT.search(name) for name in names):
            _context(plan, call, statement)
        elif isinstance(statement, cst.WithItem) and any(_PROFILER.search(name) for name in names):
            _profiler(plan, call, statement, line)
        elif _sets_variable(source, call) and isinstance(statement, cst.Expr):
            _set(plan, statement, _variable(source, call) or "")
        elif is_watching_hook(source, call) and isinstance(statement, cst.Expr):
            plan.statements.append(statement)
            plan.removed["a hook that looks for NaN"] = None
    for assign in source.every(cst.Assign):
        name = _variable(source, assign.targets[0].target)
        if name is not None and "environ" in source.code(assign.targets[0].target) and _is_on(source, assign.value):
            _set(plan, assign, name)


def _set(plan: _Plan, statement: cst.Expr | cst.Assign, variable: str) -> None:
    """Note a statement that sets a variable of the environment."""
    test = chosen_by(plan.source, statement)
    if test is not None:
        plan.reasons.append(f"{plan.source.lines_of(statement)[0]} sets {variable} where `{test}`: leave that off.")
        return
    plan.statements.append(statement)
    plan.removed[variable] = None


def _switch(plan: _Plan, call: cst.Call, statement: cst.Expr, line: int) -> None:
    mode = argument(call, "mode", 0)
    code = plan.source.code(mode.value) if mode is not None else "False"
    test = chosen_by(plan.source, statement)
    if code == "True" and test is not None:
        plan.reasons.append(f"{line} switches anomaly detection on where `{test}`: leave that off.")
    elif code == "True":
        plan.statements.append(statement)
        plan.removed["anomaly detection"] = None
    elif code != "False":
        plan.reasons.append(f"{line} switches anomaly detection on by `{code}`: leave it off where you set that.")


def _context(plan: _Plan, call: cst.Call, item: cst.WithItem) -> None:
    given = argument(call, "mode", 0) or argument(call, "enabled", 0)
    if given is not None and plan.source.code(given.value) == "False":
        return
    mode = plan.source.code(given.value) if given is not None else "True"
    if mode != "True":
        line = plan.source.lines_of(call)[0]
        plan.reasons.append(f"{line} watches by `{mode}`: leave it off where you set that.")
        return
    plan.splices += unwrap(plan.source, item)
    plan.removed["nvtx ranges" if "nvtx" in plan.source.code(call.func) else "anomaly detection"] = None


def _profiler(plan: _Plan, call: cst.Call, item: cst.WithItem, line: int) -> None:
    if argument(call, "schedule") is not None or argument(call, "on_trace_ready") is not None:
        return
    source = plan.source
    name = item.asname.name if item.asname is not None else None
    uses = [
        node
        for node in source.every(cst.Name)
        if isinstance(name, cst.Name) and node.value == name.value and node is not name
    ]
    if uses or "backward" not in source.code(source.inside(item, cst.With) or item):
        if "backward" in source.code(source.inside(item, cst.With) or item):
            plan.reasons.append(
                f"{line} profiles every step and uses the result: give it "
                "schedule=torch.profiler.schedule(wait=10, warmup=2, active=4, repeat=1), and call its step()."
            )
        return
    plan.splices += unwrap(source, item)
    plan.removed["a profiler whose result is not used"] = None


def _variable(source: Source, node: cst.CSTNode) -> str | None:
    code = source.code(node)
    return next((name for name in _VARIABLES if re.search(rf"\b{name}\b", code)), None)


def _is_on(source: Source, value: cst.BaseExpression) -> bool:
    return source.code(value).strip("'\"") not in {"0", "OFF", "INFO", ""}


def _sets_variable(source: Source, call: cst.Call) -> bool:
    """`os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")`, `os.putenv(…)`, an `update` that sets nothing else."""
    name = source.code(call.func)
    if _variable(source, call) is None:
        return False
    if name.endswith(("environ.setdefault", "putenv")) and len(call.args) == 2:
        return _is_on(source, call.args[1].value)
    keywords = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    return name.endswith("environ.update") and bool(keywords) and keywords <= set(_VARIABLES)


def _gradcheck(code: EveryStep, plan: _Plan, call: cst.Call) -> None:
    source = plan.source
    path = next(path for path, other in code.sources.items() if other is source)
    if not any(re.search(r"(^|\.)grad(grad)?check$", name) for name in {*source.names(call.func)}):
        return
    statement = source.parent(call)
    draws = any("rand" in call_name(each) for arg in call.args for each in source.every(cst.Call, arg))
    if draws or who_catches(code.sources, path, call, ERRORS_OF_CHECKS) is not None:
        plan.reasons.append(f"{source.lines_of(call)[0]} draws numbers, or its error is caught: take it out by hand.")
    elif isinstance(statement, cst.Expr) or (isinstance(statement, cst.Assert) and statement.test is call):
        plan.statements.append(statement)
        plan.removed["gradcheck"] = None


def _assertions(code: EveryStep, plan: _Plan, stretch: Stretch) -> None:
    """Checks of tensors in every step are asked without waiting."""
    source = stretch.source
    for check in stretch.steady(cst.Assert):
        if not _CHECK.search(source.code(check.test)) or check in plan.statements:
            continue
        tensor = _checked(source, check.test)
        if tensor is None or any(edit.start == source.span(check)[0] for edit in plan.splices):
            continue
        observed = _observed(code, stretch, check)
        if observed is not None:
            plan.reasons.append(f"{source.lines_of(check)[0]} {observed}")
            continue
        torch, imports = ensure_import(source, "torch")
        message = check.msg if isinstance(check.msg, cst.SimpleString) else None
        said = f", {source.code(message)}" if message is not None else ""
        plan.splices += [replace(source, check, f"{torch}._assert_async({tensor}{said})"), *imports]
        plan.removed["checks of tensors that are waited for"] = None


def _observed(code: EveryStep, stretch: Stretch, check: cst.Assert) -> str | None:
    """Why the error of a check has to be Python's, in its step; None where nothing sees the difference."""
    if check.msg is not None and not isinstance(check.msg, cst.SimpleString):
        return "computes the message of a check: a check on the device could not tell it."
    found = who_catches(code.sources, stretch.path, check, ERRORS_OF_CHECKS)
    if found is not None:
        where = f"{found[0]}:{found[1].lines_of(found[2])[0]}"
        return f"checks a tensor, and {where} may catch its error: leave it, or test less often."
    for path, source, place in ways_to(code.sources, stretch.path, check):
        for above in source.ancestors(place):
            if isinstance(above, cst.Try) and above.finalbody is not None:
                where = f"{path}:{source.lines_of(above.finalbody)[0]}"
                return f"checks a tensor, and {where} runs after its error, when the device is lost."
    return None


def _checked(source: Source, test: cst.BaseExpression) -> str | None:
    """What is asserted, as a tensor of one element; None where it is not understood to be one."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = _checked(source, test.expression)
        return f"~{inner}" if inner is not None else None
    if isinstance(test, cst.Call) and isinstance(test.func, cst.Attribute):
        code = source.code(test)
        if test.func.attr.value in {"any", "all"} and not test.args:
            return code
        if test.func.attr.value in {"isnan", "isfinite", "isinf"} and re.search(r"loss", code):
            return code
    return None


def _recorded(text: str) -> Request:
    return example_request("debug-leftovers", text)


_IMPORT = "import torch\n"
_LOOP = "for x in loader:\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"


def _left_alone(text: str) -> Example:
    return Example(text, None, _recorded)


FIXER = Fixer(
    name="drop-debug",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+idle",
    order=10,
    examples=(
        Example(_IMPORT + "\ntorch.autograd.set_detect_anomaly(True)\n" + _LOOP, _IMPORT + "\n" + _LOOP, _recorded),
        Example(
            _IMPORT + "for x in loader:\n    with torch.autograd.detect_anomaly():\n        loss = model(x).sum()\n"
            "        # gradients\n\n        loss.backward()\n    optimizer.step()\n",
            _IMPORT + "for x in loader:\n    loss = model(x).sum()\n    # gradients\n\n    loss.backward()\n"
            "    optimizer.step()\n",
            _recorded,
        ),
        Example(
            _IMPORT
            + "with torch.autocast('cuda'), torch.autograd.set_detect_anomaly(True):\n    model(x).backward()\n",
            _IMPORT + "with torch.autocast('cuda'):\n    model(x).backward()\n",
            _recorded,
        ),
        Example(
            "import os\n\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'  # for the stack\nimport torch\n" + _LOOP,
            "import torch\n" + _LOOP,
            _recorded,
        ),
        Example(
            _IMPORT + _LOOP + "    assert not torch.isnan(loss).any(), 'lost'\n    assert len(x) > 0\n",
            _IMPORT + _LOOP + "    torch._assert_async(~torch.isnan(loss).any(), 'lost')\n    assert len(x) > 0\n",
            _recorded,
        ),
        Example(
            _IMPORT + "def look(module, inputs, output):\n    if torch.isnan(output).any():\n"
            "        raise ValueError(module)\n\nfor module in model.modules():\n"
            "    module.register_forward_hook(look)\n" + _LOOP,
            _IMPORT + "def look(module, inputs, output):\n    if torch.isnan(output).any():\n"
            "        raise ValueError(module)\n\n" + _LOOP,
            _recorded,
        ),
        Example(
            "import lightning as L\ntrainer = L.Trainer(max_epochs=3, detect_anomaly=True)\n",
            "import lightning as L\ntrainer = L.Trainer(max_epochs=3)\n",
            _recorded,
        ),
        Example(
            _IMPORT
            + "with torch.profiler.profile() as prof:\n    for x in loader:\n        model(x).sum().backward()\n",
            _IMPORT + "for x in loader:\n    model(x).sum().backward()\n",
            _recorded,
        ),
        _left_alone(_IMPORT + "torch.autograd.set_detect_anomaly(args.debug)\n" + _LOOP),
        _left_alone(_IMPORT + "torch.use_deterministic_algorithms(True)\n" + _LOOP),
        _left_alone(_IMPORT + "torch.backends.cudnn.deterministic = True\n" + _LOOP),
        _left_alone(
            _IMPORT
            + "with torch.profiler.profile() as prof:\n    for x in loader:\n        model(x).sum().backward()\n"
            "prof.export_chrome_trace('trace.json')\n"
        ),
        _left_alone(_IMPORT + _LOOP + "    if step % 100 == 0:\n        assert torch.isfinite(loss).all()\n"),
        _left_alone(
            _IMPORT + "def keep(module, inputs, output):\n    kept.append(output)\n\n"
            "model.register_forward_hook(keep)\n" + _LOOP
        ),
    ),
)
