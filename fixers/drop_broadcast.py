"""Stops sending the weights of the first rank to all others in every step.

What it changes
    Takes the loop over `model.parameters()` with `dist.broadcast(…)`, or the call of the function that does nothing
    else, out of the training loop. One before the training, which makes replicas start equal, stays.

Why it helps
    Replicas that start equal and apply equal gradients stay equal: DistributedDataParallel sends the weights of the
    first rank when it is made, and gives all ranks the same gradients. The weights of a large model take longer to
    travel than their gradients, and nothing is computed meanwhile.

Fix safety
    Bitwise, where a DistributedDataParallel reduces the gradients. Without one the ranks would drift apart: such
    programs are left alone.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import (
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    ParameterLoop,
    Request,
    Splice,
    data_parallel,
    example_request,
    parameter_loops,
    remove_statements,
    training_steps,
    within,
)


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
    turns = [step.turn for step in steps if step.loop is not None]
    source = loop.source

    def trains(node: cst.CSTNode) -> bool:
        return any(within(source, node, turn) for turn in turns)

    if loop.function is None:
        return [loop.loop] if trains(loop.loop) else []
    gone: list[cst.BaseSmallStatement | cst.BaseCompoundStatement] = []
    for call in loop.calls:
        statement = source.parent(call)
        if isinstance(statement, cst.Expr) and trains(call):
            gone.append(statement)
    if gone and len(gone) == len(loop.calls) and source.text.count(loop.function.name.value) == len(gone) + 1:
        gone.append(loop.function)
    return gone


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
    ),
)
