"""Switches off what was switched on to find a fault, where that ends no run.

What it changes
    Takes the contexts `emit_nvtx()` and `emit_itt()` and a profiler whose result nobody uses from around their code,
    and the lines that set `CUDA_LAUNCH_BLOCKING` or `TORCH_DISTRIBUTED_DEBUG`. Anomaly detection goes where
    `check_nan=False` says that it only keeps stacks.

Why it helps
    Anomaly detection keeps the stack of every operation. With `CUDA_LAUNCH_BLOCKING` the host waits for each kernel. A
    profiler and ranges cost the host time for each operator.

Fix safety
    Bitwise: none of these takes part in what is computed, and none of them ends a run. Left alone, with advice and the
    line: what raises an error at a NaN or a wrong gradient. Anomaly detection, `gradcheck`, an `assert` on a tensor and
    a hook that raises stop a run that would go on without them. Deterministic settings are left alone: they are a
    choice. So is a switch that comes from the command line or stands under a condition, and a profiler whose results
    are used, with advice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.dataflow.flow import chosen_by
from diagnose.source.rewrite.context_removal import unwrap
from diagnose.source.rewrite.hooks import is_watching_hook
from diagnose.source.rewrite.leftovers import without_import
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.settings.process_settings import environment_read
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import Source, Splice, call_name, splice

_SWITCH = re.compile(r"(^|\.)set_detect_anomaly$")
_CONTEXT = re.compile(r"(^|\.)(set_detect_anomaly|detect_anomaly|emit_nvtx|emit_itt)$")
_DETECTS = re.compile(r"(^|\.)detect_anomaly$")
_GRADCHECK = re.compile(r"(^|\.)grad(grad)?check$")
_PROFILER = re.compile(r"^torch\.(profiler|autograd\.profiler)\.profile$")
_VARIABLES = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "AMD_SERIALIZE_KERNEL", "HIP_LAUNCH_BLOCKING")
_CHECKS = ("isnan", "isinf", "isfinite", "allclose", "equal")
_SWITCHES = ("detect_anomaly", "emit_nvtx", "emit_itt", "profile", "_hook", *_VARIABLES)
"""The words of which a file that has a debug switch holds one."""
_ABOUT = r"debug|anomal|\bnan\b|launch|blocking|check|hook|profil"


@dataclass
class _Plan:
    """The edits of one file."""

    source: Source
    read: Mapping[str, str]
    """Variables of the environment that the program reads, and where."""
    statements: list[cst.BaseSmallStatement | cst.BaseCompoundStatement] = field(default_factory=list)
    splices: list[Splice] = field(default_factory=list)
    removed: dict[str, None] = field(default_factory=dict)
    """The settings that were switched off, for the summary."""
    reasons: list[str] = field(default_factory=list)


def rewrite(request: Request) -> Answer:
    """Switch off everything that is known to be left from a hunt for a fault."""
    code = EveryStep(request.sources, request.finding.where)
    read = dict(_variables_read(code.mentioning(*_VARIABLES, "environ")))
    plans = {path: _Plan(source, read) for path, source in code.sources.items()}
    for plan in plans.values():
        if plan.source.mentions(*_SWITCHES):
            _settings(plan)
    for stretch, call in code.calls("gradcheck", "gradgradcheck"):
        if any(_GRADCHECK.search(name) for name in stretch.source.names(call.func)):
            _keep(plans[stretch.path], call, "compares gradients in every step")
    for stretch in code.stretches:
        for check in stretch.steady(cst.Assert) if stretch.mentions(["assert"], _CHECKS) else ():
            if any(call_name(call) in _CHECKS for call in stretch.source.every(cst.Call, check.test)):
                _keep(plans[stretch.path], check, "waits for a tensor in every step")
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


def _keep(plan: _Plan, node: cst.CSTNode, does: str) -> None:
    """Say why a check that may end the run is left alone."""
    line = plan.source.lines_of(node)[0]
    plan.reasons.append(f"{line} {does}, and may end the run by an error: take it out where you no longer need that.")


def _settings(plan: _Plan) -> None:
    """Switches, contexts, environment variables and hooks, wherever they are."""
    source = plan.source
    for call in source.every(cst.Call):
        statement = source.parent(call)
        line = source.lines_of(call)[0]
        names = {*source.names(call.func), source.code(call.func)}
        given = argument(call, "detect_anomaly")
        if (given is not None and source.code(given.value) == "True") or _stops_at_nan(source, call, names):
            _keep(plan, call, "looks for NaN in every gradient")
        elif any(_SWITCH.search(name) for name in names) and isinstance(statement, cst.Expr):
            _switch(plan, call, statement, line)
        elif isinstance(statement, cst.WithItem) and any(_CONTEXT.search(name) for name in names):
            _context(plan, call, statement)
        elif isinstance(statement, cst.WithItem) and any(_PROFILER.search(name) for name in names):
            _profiler(plan, call, statement, line)
        elif _sets_variable(source, call) and isinstance(statement, cst.Expr):
            _set(plan, statement, _variable(source, call) or "")
        elif is_watching_hook(source, call):
            _keep(plan, call, "looks for NaN in a hook")
    for assign in source.every(cst.Assign):
        name = _variable(source, assign.targets[0].target)
        if name is not None and "environ" in source.code(assign.targets[0].target) and _is_on(source, assign.value):
            _set(plan, assign, name)


def _stops_at_nan(source: Source, call: cst.Call, names: Collection[str]) -> bool:
    """Whether a call switches anomaly detection on for certain, with its check for NaN, which raises."""
    context = any(_DETECTS.search(name) for name in names)
    switch = any(_SWITCH.search(name) for name in names)
    mode = argument(call, "mode", 0) if switch else None
    checks = argument(call, "check_nan", 1 if switch else 0)
    if checks is not None and source.code(checks.value) == "False":
        return False
    return context or (mode is not None and source.code(mode.value) == "True" and chosen_by(source, call) is None)


def _variables_read(sources: Mapping[str, Source]) -> Iterator[tuple[str, str]]:
    """Yield where a program names one of the variables, but for setting it, or takes all that there are."""
    for path, source in sources.items():
        for string in source.every(cst.SimpleString):
            if string.evaluated_value in _VARIABLES:
                call = source.inside(string, cst.Call)
                target = source.inside(string, cst.AssignTarget)
                if target is None and not (call is not None and _sets_variable(source, call)):
                    yield str(string.evaluated_value), f"{path}:{source.lines_of(string)[0]}"
    all_of_them = environment_read({path: source.text for path, source in sources.items()})
    yield from ((name, all_of_them) for name in _VARIABLES if all_of_them is not None)


def _set(plan: _Plan, statement: cst.Expr | cst.Assign, variable: str) -> None:
    """Note a statement that sets a variable of the environment."""
    if (reader := plan.read.get(variable)) is not None:
        plan.reasons.append(f"{plan.source.lines_of(statement)[0]} sets {variable}, which {reader} reads.")
        return
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
    mode, line = plan.source.code(given.value) if given is not None else "True", plan.source.lines_of(call)[0]
    if mode != "True":
        plan.reasons.append(f"{line} watches by `{mode}`: leave it off where you set that.")
        return
    if (test := chosen_by(plan.source, item)) is not None:
        plan.reasons.append(f"{line} watches where `{test}`: leave that off.")
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
    if (test := chosen_by(source, item)) is not None:
        plan.reasons.append(f"{line} profiles where `{test}`: leave that off.")
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


def _recorded(text: str) -> Request:
    return example_request("debug-leftovers", text)


_IMPORT = "import torch\n"
_LOOP = "for x in loader:\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"


FIXER = Fixer(
    name="drop-debug",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+idle",
    order=10,
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "\n{-torch.autograd.set_detect_anomaly(True, check_nan=False)\n-}" + _LOOP,
            (
                _IMPORT + "for x in loader:\n    {-with torch.autograd.profiler.emit_nvtx():\n"
                "        -}loss = model(x).sum(){-\n        -}{+\n    +}# gradients{-\n\n        -}{+\n\n"
                "    +}loss.backward()\n    optimizer.step()\n"
            ),
            (
                _IMPORT + "with torch.autocast('cuda'{-), torch.autograd.detect_anomaly(check_nan=False-}):\n"
                "    model(x).backward()\n"
            ),
            "{-import os\n\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'  # for the stack\n-}import torch\n" + _LOOP,
            (
                _IMPORT + "{-with torch.profiler.profile() as prof:\n    -}for x in loader:{-\n        -}{+\n"
                "    +}model(x).sum().backward()\n"
            ),
            _IMPORT + "torch.autograd.set_detect_anomaly(args.debug)\n" + _LOOP,
            _IMPORT + "torch.autograd.set_detect_anomaly(True)\n" + _LOOP,
            _IMPORT + "with torch.autograd.detect_anomaly():\n    model(x).backward()\n",
            "import lightning as L\ntrainer = L.Trainer(max_epochs=3, detect_anomaly=True)\n",
            _IMPORT + _LOOP + "    assert not torch.isnan(loss).any(), 'lost'\n",
            (
                _IMPORT + "def look(module, inputs, output):\n    if torch.isnan(output).any():\n"
                "        raise ValueError(module)\n\nmodel.register_forward_hook(look)\n" + _LOOP
            ),
            (
                "import os\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'\nimport torch\n"
                "print(os.environ['CUDA_LAUNCH_BLOCKING'])\n" + _LOOP
            ),
            _IMPORT + "if args.profile:\n    with torch.autograd.profiler.emit_nvtx():\n        train()\n",
            _IMPORT + "if args.profile:\n    with torch.profiler.profile():\n        model(x).sum().backward()\n",
            _IMPORT + "torch.use_deterministic_algorithms(True)\n" + _LOOP,
            _IMPORT + "torch.backends.cudnn.deterministic = True\n" + _LOOP,
            (
                _IMPORT
                + "with torch.profiler.profile() as prof:\n    for x in loader:\n        model(x).sum().backward()\n"
                "prof.export_chrome_trace('trace.json')\n"
            ),
            _IMPORT + _LOOP + "    if step % 100 == 0:\n        assert torch.isfinite(loss).all()\n",
            (
                _IMPORT + "def keep(module, inputs, output):\n    kept.append(output)\n\n"
                "model.register_forward_hook(keep)\n" + _LOOP
            ),
        ),
    ),
)
