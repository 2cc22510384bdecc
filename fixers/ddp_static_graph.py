"""Tells DistributedDataParallel that every step has the same graph.

What it changes
    Adds `static_graph=True` to DistributedDataParallel (or to what tells a library how to make it). A
    `find_unused_parameters=True` beside it gives its place to it: what a graph leaves unused is then found once.

Why it helps
    Hooks that ask at every step which gradients come, and in which order, are asked once. Unused parameters are found
    in the first step instead of in each.

Fix safety
    Bitwise, as long as the graph is the same in every step of every rank; where it is not, gradients may be missing or
    ranks wait forever. Left alone: modules that branch on random numbers or on the step, programs whose steps are of
    several kinds (a generator's and a discriminator's), steps that freeze or thaw parameters or differentiate several
    times, and those with `no_sync`, whose micro-steps differ in what is reduced.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, Site, example_request
from diagnose.source.distributed.data_parallel import data_parallel
from diagnose.source.distributed.dynamic_parameters import varies
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.arguments import set_keywords

_SETS_GRAPH = frozenset({"requires_grad", "requires_grad_"})
_AGAIN = frozenset({"retain_graph", "create_graph"})
_DIFFERS = re.compile(r"\bno_sync\(|require_backward_grad_sync|_set_static_graph")


def rewrite(request: Request) -> Answer:
    """Set the option on every wrapper that leaves it to its default."""
    if any(_DIFFERS.search(text) for text in request.sources.values()) or varies(request.sources) is not None:
        return None
    steps = training_steps(request.sources, request.sites)
    forwards = {frozenset(map(id, step.forward or (step.backward,))) for step in steps}
    if len(forwards) > 1:  # a model's part in one may be another than its part in the next
        return None
    if any(_changes_graph(step) for step in steps):
        return None
    found = data_parallel(request.sources, request.sites)
    wrappers = [one for one in found if one.leaves("static_graph", default="False")]
    if not wrappers:
        return None
    edits = []
    for one in wrappers:
        searches = one.is_wrapper and one.code("find_unused_parameters") == "True"
        remove = ["find_unused_parameters"] if searches and one.code("static_graph") is None else []
        edits.append((one.path, set_keywords(one.source, one.call, {"static_graph": "True"}, remove=remove)))
    return Edits(request.edited(edits), "tell DistributedDataParallel that every step has the same graph")


def _changes_graph(step: TrainingStep) -> bool:
    """Whether a turn sets which parameters have gradients, or asks for gradients beside its backward pass."""
    source = step.source
    if any(name.value in _SETS_GRAPH for name in source.every(cst.Name, step.turn)):
        return True
    return any(arg.keyword.value in _AGAIN for arg in source.every(cst.Arg, step.turn) if arg.keyword is not None)


def _recorded(text: str) -> Request:
    site = Site("DistributedDataParallel", "train.py", 2, arguments={"static_graph": False})
    return example_request("exposed-communication", text, sites=[site])


_IMPORT = "from torch.nn.parallel import DistributedDataParallel as DDP\n"

FIXER = Fixer(
    name="ddp-static-graph",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+exposed_comm+exposed_copy+idle",
    order=80,
    conflicts=("no-sync",),
    after=("ddp-all-used",),
    examples=(
        Example(
            _IMPORT + "model = DDP(model, device_ids=[rank])\n",
            _IMPORT + "model = DDP(model, device_ids=[rank], static_graph=True)\n",
            _recorded,
        ),
        Example(
            _IMPORT + "model = DDP(model, find_unused_parameters=True)\n",
            _IMPORT + "model = DDP(model, static_graph=True)\n",
            _recorded,
        ),
        Example(_IMPORT + "model = DDP(model, static_graph=True)\n", None, _recorded),
        Example(
            _IMPORT + "judge = DDP(net)\nfor x in batches:\n    net(x).mean().backward()\n    optimizer.step()\n"
            "    net(make(x)).mean().backward()\n    other.step()\n",
            None,
            _recorded,
        ),
        Example(
            _IMPORT + "model = DDP(net)\nfor x in batches:\n    net.body.requires_grad_(epoch > 3)\n"
            "    model(x).mean().backward()\n    optimizer.step()\n",
            None,
            _recorded,
        ),
        Example(_IMPORT + "model = DDP(model)\nwith model.no_sync():\n    pass\n", None, _recorded),
    ),
)
