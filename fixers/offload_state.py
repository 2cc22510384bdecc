"""Keeps what the optimizer holds in the host's memory between steps, as much of it as memory asks for.

What it changes
    Adds `offload_state(optimizer, 0.5)` of `diagnose.kernels` behind the line that builds the optimizer.

Why it helps
    Adam keeps two numbers for each parameter, which nobody reads but the optimizer as it steps: in the forward and the
    backward pass, when memory is fullest, they only lie there. A copy engine takes them to pinned memory of the host
    beside the next forward pass, and brings them back for the step. The share is the least with which the peak fits,
    from what the run measured; where that is not known, several are tried.

Fix safety
    Bitwise: what comes back is what went. The step waits for the copies: some tens of milliseconds a gigabyte where the
    bus is slow; who has memory to spare may let them begin in the backward pass, by `ahead=True`. The host needs as
    much memory, pinned. The optimizer's `state_dict()` is complete and can be loaded with or without this. Left alone:
    optimizers that step within a CUDA graph (`capturable`) or a compiled function; programs that offload by themselves,
    that look into `optimizer.state`, copy the optimizer itself, or gather its sharded state from all ranks; plain SGD,
    which keeps nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, Site, example_request
from diagnose.memory import read_blocks, state_shares
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import Source, Splice, call_at, ensure_from_import, insert_after, parse
from diagnose.source.tree.syntax import only_statement
from diagnose.source.tree.text_lines import any_matches

_KEEP = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "SGD"})
"""Torch's own optimizers that keep tensors of a parameter's size; SGD where it has momentum."""
_OTHERWISE = re.compile(
    r"\boffload_state\(|\bCPUOffload|cpu_offload|offload_optimizer|ZeroRedundancyOptimizer|\bdeepspeed\b|\bbitsandbytes\b"
    r"|CUDAGraph\(|make_graphed_callables\(|cuda\.graph\(|\.state\b(?!_dict)\s*[\[.]|compile\(\s*[\w.]*\.step\b"
    r"|full_state_dict|full_tensor\(|\boptim_state_dict\(|full_optim_state_dict"  # gathered by NCCL, on the device only
    r"|deepcopy\(\s*[\w.]*opt(?:im\w*)?\s*\)|(?:save|dumps?)\(\s*[\w.]*opt(?:im\w*)?\s*[,)]"  # its hooks get lost
)
_BY_HAND = (
    "What the optimizer holds can lie in the host's memory between steps: `diagnose.kernels.offload_state(optimizer)`."
)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Shares of the state, the least first."""
    known = read_blocks(request.sites)
    limit = known.limit_bytes if known is not None and known.limit_bytes else request.facts.device_memory_bytes
    return [{"share": share} for share in state_shares(known, limit, request.sites)]


def rewrite(request: Request) -> Answer:
    """Put the call behind every optimizer that keeps a state."""
    share = request.setting.get("share")
    if not isinstance(share, float) or any_matches(_OTHERWISE, request.sources.values()):
        return None
    edits: list[tuple[str, list[Splice]]] = []
    reasons: list[str] = []
    for site in _sites(request):
        made = _edit(request, site, share)
        if isinstance(made, str):
            reasons.append(f"{site.file}:{site.line}: {_BY_HAND} No edit is made: {made}.")
        elif made:
            edits.append((site.file, made))
    if edits:
        which = "what the optimizer holds" if share == 1 else f"{share:.0%} of what the optimizer holds"
        return Edits(request.edited(edits), f"keep {which} in the host's memory between steps")
    return Advice(reasons[0]) if reasons else None


def _sites(request: Request) -> list[Site]:
    """The recorded optimizers, else those that the text builds."""
    sites = [site for site in request.sites if site.kind == "optimizer"]
    if sites:
        return sites
    parsed = ((path, parse(text)) for path, text in request.sources.items() if "optim" in text)
    return [
        Site("optimizer", path, source.lines_of(call)[0])
        for path, source in parsed
        if source is not None
        for call in source.every(cst.Call)
        if _kind(source, call)
    ]


def _edit(request: Request, site: Site, share: float) -> list[Splice] | str:
    """The edits for one optimizer, none where there is nothing to move; or why there are none."""
    if not site.owned:
        return "a library builds the optimizer"
    source = parse(request.sources.get(site.file, ""))
    call = call_at(source, site.line, _KEEP) if source is not None else None
    kind = _kind(source, call) if source is not None and call is not None else None
    if source is None or call is None or kind is None:
        return f"{site.arguments.get('name') or 'the optimizer'} is none of torch's own that is built on that line"
    if kind == "SGD" and not _has_momentum(source, call, site):
        return []
    if any(_is_on(source, call, site, name) for name in ("capturable", "differentiable")):
        return []
    statement = source.statement(call)
    small = only_statement(statement)
    target = small.targets[0].target if isinstance(small, cst.Assign) and len(small.targets) == 1 else None
    if statement is None or not isinstance(target, cst.Name | cst.Attribute):
        return "no name is given to the optimizer on that line"
    assert isinstance(small, cst.Assign)  # or there were no target
    if small.value is not call:
        return "it is wrapped, or one of several, on that line"
    (offload_state,), imports = ensure_from_import(source, "diagnose.kernels", ["offload_state"])
    given = source.code(target) if share == 1 else f"{source.code(target)}, {share:g}"
    return [*imports, insert_after(source, statement, [f"{offload_state}({given})"])]


def _kind(source: Source, call: cst.Call) -> str | None:
    """The name of torch's optimizer that a call builds, where it keeps something."""
    names = (name.rpartition(".")[2] for name in source.names(call.func) if name.startswith("torch.optim."))
    return next((name for name in names if name in _KEEP), None)


def _has_momentum(source: Source, call: cst.Call, site: Site) -> bool:
    if "momentum" in site.arguments:
        return bool(site.arguments["momentum"])
    given = argument(call, "momentum", 2)
    return given is not None and source.code(given.value) not in {"0", "0.0"}


def _is_on(source: Source, call: cst.Call, site: Site, name: str) -> bool:
    """Whether an option is on, or may be."""
    if name in site.arguments:
        return bool(site.arguments[name])
    given = argument(call, name)
    return given is not None and source.code(given.value) != "False"


def _asked(text: str) -> Request:
    return example_request("memory-pressure", text, setting={"share": 0.5})


def _whole(text: str) -> Request:
    return example_request("memory-pressure", text, setting={"share": 1.0})


_ADAM = "import torch\n\nmodel = Net()\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
_NEW = "import torch\nfrom diagnose.kernels import offload_state\n\nmodel = Net()\n"

FIXER = Fixer(
    name="offload-state",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.allocator",
    settings=settings,
    order=72,
    conflicts=("cuda-graphs",),
    after=("checkpoint-blocks", "memory-budget", "offload"),
    examples=(
        Example(
            _ADAM,
            _NEW + "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\noffload_state(optimizer, 0.5)\n",
            _asked,
        ),
        Example(
            "from torch.optim import SGD\n\n\nclass Trainer:\n    def __init__(self, net):\n"
            "        self.opt = SGD(net.parameters(), 0.1, 0.9)\n",
            "from diagnose.kernels import offload_state\nfrom torch.optim import SGD\n\n\nclass Trainer:\n"
            "    def __init__(self, net):\n        self.opt = SGD(net.parameters(), 0.1, 0.9)\n"
            "        offload_state(self.opt)\n",
            _whole,
        ),
        Example(_ADAM.replace("AdamW(model.parameters(), lr=1e-4", "SGD(model.parameters(), lr=1e-4"), None, _asked),
        Example(_ADAM.replace("lr=1e-4", "lr=1e-4, capturable=True"), None, _asked),
        Example(_ADAM.replace("lr=1e-4", "lr=1e-4, differentiable=flag"), None, _asked),
        Example(_ADAM + "for state in optimizer.state.values():\n    state['exp_avg'].zero_()\n", None, _asked),
        Example(_ADAM + "step = torch.compile(optimizer.step)\n", None, _asked),
        Example(_ADAM + "kept = copy.deepcopy(optimizer)\n", None, _asked),
        Example(_ADAM + "options = StateDictOptions(full_state_dict=True)\n", None, _asked),
        Example(_ADAM.replace("torch.optim.AdamW", "ZeroRedundancyOptimizer"), None, _asked),
        Example(_ADAM.replace("optimizer = torch", "optimizers = [torch").replace("1e-4)", "1e-4)]"), None, _asked),
    ),
)
