"""Stops sending the weights of the first rank to all others in every step.

What it changes
    Takes the loop over `model.parameters()` with `dist.broadcast(…)`, or the call of the function that does nothing
    else, out of the training loop. One before the training, which makes replicas start equal, stays.

Why it helps
    Replicas that start equal and apply equal gradients stay equal: DistributedDataParallel sends the weights of the
    first rank when it is made, and gives all ranks the same gradients. The weights of a large model take longer to
    travel than their gradients, and nothing is computed meanwhile.

Fix safety
    Bitwise, where a DistributedDataParallel reduces the gradients of that model. Without one the ranks would drift
    apart: such programs are left alone, and so are those in which one rank alone steps or loads weights, each rank
    sends those that it stepped, or another model is sent, such as an average of the weights.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import (
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    ParameterLoop,
    Request,
    Source,
    Splice,
    TrainingStep,
    argument,
    asks_rank,
    call_name,
    data_parallel,
    example_request,
    parameter_loops,
    remove_statements,
    training_steps,
    within,
    wrapper_of,
)

_ASKS_RANKS = re.compile(r"world_?size|is_initialized|is_available|\bdistributed\b|\bddp\b", re.IGNORECASE)
_WRITES = frozenset({"step", "load_state_dict", "copy_", "mul_", "add_", "lerp_", "fill_", "zero_", "apply"})


def rewrite(request: Request) -> Answer:
    """Take out what runs after a backward pass of a wrapped model."""
    if not any(one.is_wrapper for one in data_parallel(request.sources, request.sites)):
        return None
    edits: list[tuple[str, list[Splice]]] = []
    for loop in parameter_loops(request.sources):
        if loop.collective == "broadcast":
            gone = _in_training(request, loop)
            if gone:
                edits.append((loop.path, remove_statements(loop.source, gone, about=r"replica|weights|broadcast|sync")))
    return Edits(request.edited(edits), "do not send weights that are equal on all ranks") if edits else None


def _in_training(request: Request, loop: ParameterLoop) -> list[cst.BaseSmallStatement | cst.BaseCompoundStatement]:
    """The statements that go: in a turn of a training loop, and the function if nobody else calls it."""
    steps = [step for step in training_steps(request.sources, request.sites) if step.path == loop.path]
    steps = [step for step in steps if step.loop is not None and not _differ(step)]
    source = loop.source

    def is_in_vain(node: cst.CSTNode, model: str) -> bool:
        """Whether a step's own wrapped model is sent there, and whatever the question around it, nothing else is."""
        return any(
            within(source, node, step.turn) and _is_its(request, step, model) and _stands_alone(source, node, step)
            for step in steps
        )

    if loop.function is None:
        return [loop.loop] if is_in_vain(loop.loop, loop.model) else []
    gone: list[cst.BaseSmallStatement | cst.BaseCompoundStatement] = []
    for call in loop.calls:
        statement = source.parent(call)
        if isinstance(statement, cst.Expr) and is_in_vain(statement, _given(loop, call)):
            gone.append(statement)
    if gone and len(gone) == len(loop.calls) and source.text.count(loop.function.name.value) == len(gone) + 1:
        gone.append(loop.function)
    return gone


def _given(loop: ParameterLoop, call: cst.Call) -> str:
    """What a call of the loop's function names the model whose weights it sends."""
    assert loop.function is not None  # or nobody could call it
    root, dot, rest = loop.model.partition(".")
    names = [each.name.value for each in loop.function.params.params if each.name.value != "self"]
    passed = argument(call, root, names.index(root)) if root in names else None
    return loop.source.code(passed.value) + dot + rest if passed is not None else loop.model


def _is_its(request: Request, step: TrainingStep, model: str) -> bool:
    """Whether a name is that of the step's model, and a DistributedDataParallel reduces its gradients."""
    wrapper = wrapper_of(step, request.sources, request.sites)
    if wrapper is None or step.model is None:
        return False
    inner = wrapper.source.code(wrapper.call.args[0].value) if wrapper.call.args else ""
    return model in {step.model, f"{step.model}.module", inner}


def _differ(step: TrainingStep) -> bool:
    """Whether one rank does to the weights what the others do not."""
    branches = (each for each in step.source.every(cst.If, step.turn) if asks_rank(step.source, each))
    return any(call_name(call) in _WRITES for branch in branches for call in step.source.every(cst.Call, branch))


def _stands_alone(source: Source, node: cst.CSTNode, step: TrainingStep) -> bool:
    """Whether a question around it asks only whether there are several ranks, or is about nothing else."""
    for above in source.ancestors(node):
        if above is step.turn:
            break
        if not isinstance(above, cst.If) or _ASKS_RANKS.search(source.code(above.test)):
            continue
        if above.orelse is not None or len(above.body.body) > 1:
            return False
    return True


def _recorded(text: str) -> Request:
    return example_request("exposed-communication", text)


_BEFORE = """import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def align(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def main():
    model = DDP(build())
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
        align(model)
"""
_AFTER = """import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    model = DDP(build())
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
"""

FIXER = Fixer(
    name="drop-broadcast",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_comm+idle+compute",
    order=20,
    examples=(
        Example(_BEFORE, _AFTER, _recorded),
        Example(_AFTER + "        for p in model.parameters():\n            dist.broadcast(p, 0)\n", _AFTER, _recorded),
        Example(_BEFORE.replace("DDP(build())", "build()"), None, _recorded),
        Example(
            _BEFORE.replace("        align(model)\n", "").replace("    for x", "    align(model)\n    for x"),
            None,
            _recorded,
        ),
        Example(
            _AFTER + "        for p in model.parameters():\n            dist.broadcast(p, owner[p])\n", None, _recorded
        ),
        Example(_AFTER + "        for p in average.parameters():\n            dist.broadcast(p, 0)\n", None, _recorded),
        Example(_BEFORE.replace("        opt", "        if dist.get_rank() == 0:\n            opt"), None, _recorded),
    ),
)
