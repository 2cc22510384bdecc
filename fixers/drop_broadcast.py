"""Stops sending the weights of the first rank to all others in every step.

What it changes
    Takes the loop over `model.parameters()` with `dist.broadcast(…)`, or the call of the function that does nothing
    else, out of the training loop. One before the training, which makes replicas start equal, stays.

Why it helps
    Replicas that start equal and apply equal gradients stay equal: DistributedDataParallel sends the weights of the
    first rank when it is made, and gives all ranks the same gradients. The weights of a large model take longer to
    travel than their gradients, and nothing is computed meanwhile.

Fix safety
    Bitwise, where a DistributedDataParallel reduces the gradients of that model, and all ranks then do the same to its
    weights. Left alone: programs without one, or in which it does not reduce all gradients (`no_sync`, a communication
    hook); in which one rank alone steps or loads weights, or a rank's number goes into a setting; in which a step does
    more after the backward pass than clip gradients and let the optimizer step, in each turn or each n-th; and where
    each rank sends those weights that it stepped, or another model is sent, such as an average of the weights.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.dataflow.flow import within
from diagnose.source.dataflow.ranks import asks_rank, names_ranks
from diagnose.source.distributed.data_parallel import data_parallel, wrapper_of
from diagnose.source.distributed.parameter_loops import ParameterLoop, parameter_loops
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.edits import Source, Splice, call_name
from diagnose.source.tree.memo import parse_all

_ASKS_RANKS = re.compile(r"world_?size|is_initialized|is_available|\bdistributed\b|\bddp\b", re.IGNORECASE)
_REDUCES_LESS = frozenset({"no_sync", "register_comm_hook", "require_backward_grad_sync"})
_ALIKE = frozenset(
    {
        "step",
        "zero_grad",
        "backward",
        "scale",
        "unscale_",
        "update",
        "clip_grad_norm_",
        "clip_grad_value_",
        "parameters",
    }
    | {"item", "detach", "print", "len", "float", "int", "append", "format", "get_last_lr", "size", "range", "barrier"}
    | {"set_postfix", "set_description", "all_reduce", "log", "info", "add_scalar", "perf_counter", "time"}
)
"""The calls that a step may make after its backward pass: it does the same to the weights of all ranks, or nothing."""
_WRITES = frozenset({"step", "load_state_dict", "copy_", "mul_", "add_", "lerp_", "fill_", "zero_", "apply"})


def rewrite(request: Request) -> Answer:
    """Take out what runs after a backward pass of a wrapped model."""
    if not any(one.is_wrapper for one in data_parallel(request.sources, request.sites)):
        return None
    parsed = list(parse_all(request.sources).values())
    if any(_reduces_less(source) or _differ(source) for source in parsed):
        return None
    edits: list[tuple[str, list[Splice]]] = []
    for loop in parameter_loops(request.sources):
        if loop.collective == "broadcast":
            gone = _in_training(request, loop)
            if gone:
                edits.append((loop.path, remove_statements(loop.source, gone, about=r"replica|weights|broadcast|sync")))
    return request.answer(edits, "do not send weights that are equal on all ranks")


def _in_training(request: Request, loop: ParameterLoop) -> list[cst.BaseSmallStatement | cst.BaseCompoundStatement]:
    """The statements that go: in a turn of a training loop, and the function if nobody else calls it."""
    steps = [step for step in training_steps(request.sources, request.sites) if step.path == loop.path]
    steps = [step for step in steps if step.loop is not None]
    source = loop.source

    def is_in_vain(node: cst.CSTNode, model: str) -> bool:
        """Whether a step's own wrapped model is sent there, and whatever the question around it, nothing else is."""
        return any(
            within(source, node, step.turn)
            and _is_its(request, step, model)
            and _stands_alone(source, node, step)
            and _does_alike(step, node)
            for step in steps
        )

    if loop.function is None:
        return [loop.loop] if is_in_vain(loop.loop, loop.model) else []
    gone: list[cst.BaseSmallStatement | cst.BaseCompoundStatement] = []
    for call in loop.calls:
        statement = source.parent(call)
        if isinstance(statement, cst.Expr) and is_in_vain(statement, loop.model_in(call)):
            gone.append(statement)
    if gone and len(gone) == len(loop.calls) and source.text.count(loop.function.name.value) == len(gone) + 1:
        gone.append(loop.function)
    return gone


def _is_its(request: Request, step: TrainingStep, model: str) -> bool:
    """Whether a name is that of the step's model, and a DistributedDataParallel reduces its gradients."""
    wrapper = wrapper_of(step, request.sources, request.sites)
    if wrapper is None or step.model is None:
        return False
    inner = wrapper.source.code(wrapper.call.args[0].value) if wrapper.call.args else ""
    return model in {step.model, f"{step.model}.module", inner}


def _reduces_less(source: Source) -> bool:
    """Whether gradients may be reduced otherwise than all of them, as their mean."""
    return any(any(source.named(name)) for name in _REDUCES_LESS if name in source.words)


def _differ(source: Source) -> bool:
    """Whether one rank does to the weights what the others do not, or sets something by its number."""
    if not names_ranks(source):
        return False
    branches = [each for each in source.every(cst.If) if asks_rank(source, each.test)]
    if any(call_name(call) in _WRITES for branch in branches for call in source.every(cst.Call, branch)):
        return True
    settings = [*source.every(cst.Assign), *source.every(cst.Call)]
    optimizers = (each for each in settings if isinstance(each, cst.Call) and _is_of_optimizer(source, each))
    # What is updated is wrapped on a device of each rank; how it is updated must not hang on the rank.
    told = [arg.value for each in optimizers for arg in each.args[1:]]
    told += [each.value for each in settings if isinstance(each, cst.Assign) and _is_item(each)]
    return any(asks_rank(source, each) for each in told)


def _is_of_optimizer(source: Source, call: cst.Call) -> bool:
    return call_name(call).startswith("clip_grad") or source.is_called(call.func, "torch.optim.")


def _is_item(assign: cst.Assign) -> bool:
    return any(isinstance(each.target, cst.Subscript) for each in assign.targets)


def _does_alike(step: TrainingStep, node: cst.CSTNode) -> bool:
    """Whether all that a step does to weights beside `node` is its backward pass and the optimizer's step, in each turn
    or each n-th."""
    source, end = step.source, step.source.span(step.backward)[1]
    others = [each for each in step.turn.body if each is not node and not within(source, node, each)]
    loops = [
        each.iter for other in others for each in (other, *source.every(cst.For, other)) if isinstance(each, cst.For)
    ]
    if any("parameters" in source.code(each) or "state_dict" in source.code(each) for each in loops):
        return False
    for other in others:
        branches = [each for each in source.every(cst.If, other) if asks_rank(source, each.test)]
        for call in source.every(cst.Call, other):
            told = any(within(source, call, branch) for branch in branches)  # writes were looked for there
            if source.span(call)[1] > end and call_name(call) not in _ALIKE and not told:
                return False
        if any(isinstance(each.target, cst.Attribute) for each in source.every(cst.AugAssign, other)):
            return False
    return all(_is_counted(source, call, step) for call in step.optimizer_steps)


def _is_counted(source: Source, call: cst.Call, step: TrainingStep) -> bool:
    """Whether questions around a call within the turn are about the number of the turn alone."""
    for above in source.ancestors(call):
        if above is step.turn:
            break
        if isinstance(above, cst.If):
            test = above.test
            modulo = any(isinstance(each.operator, cst.Modulo) for each in source.every(cst.BinaryOperation, test))
            if not modulo or any(call_name(each) != "len" for each in source.every(cst.Call, test)):
                return False
    return True


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
        *word_diffs(
            _recorded,
            _BEFORE.replace("DDP(build())", "build()"),
            _BEFORE.replace("        align(model)\n", "").replace("    for x", "    align(model)\n    for x"),
            _AFTER + "        for p in model.parameters():\n            dist.broadcast(p, owner[p])\n",
            _AFTER + "        for p in average.parameters():\n            dist.broadcast(p, 0)\n",
            _BEFORE.replace("        opt", "        if dist.get_rank() == 0:\n            opt"),
            _BEFORE.replace("        opt", "        if loss.item() < 3:\n            opt"),
            _BEFORE.replace("        align", "        perturb(model)\n        align"),
            _BEFORE.replace("        opt", "        optimizer.param_groups[0]['lr'] = rate * rank\n        opt"),
            _BEFORE + "    model.register_comm_hook(None, noop_hook)\n",
        ),
    ),
)
