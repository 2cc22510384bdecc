"""Lets gradients live in the buckets that are reduced.

What it changes
    Adds `gradient_as_bucket_view=True` to DistributedDataParallel (or to what tells a library how to make it).

Why it helps
    Without it every gradient is copied into its bucket before the reduction and back after it, and memory holds all
    gradients twice.

Fix safety
    Bitwise: the same sums of the same numbers. A gradient is then a view: `p.grad.detach_()` is refused by torch, so
    programs that do that are left alone; `zero_grad` works either way.
"""

from __future__ import annotations

import re

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, Site, example_request
from diagnose.source.distributed.data_parallel import data_parallel
from diagnose.source.tree.arguments import set_keywords

_NEEDS_OWN_GRADIENTS = re.compile(r"\.grad\.detach_\(|\.grad\.data\s*=|\.grad\.set_\(|ZeroRedundancyOptimizer")


def rewrite(request: Request) -> Answer:
    """Set the option on every wrapper that leaves it to its default, which is False."""
    if any(_NEEDS_OWN_GRADIENTS.search(text) for text in request.sources.values()):
        return None
    found = data_parallel(request.sources, request.sites)
    wrappers = [one for one in found if one.leaves("gradient_as_bucket_view", default="False")]
    if not wrappers:
        return None
    edits = [(one.path, set_keywords(one.source, one.call, {"gradient_as_bucket_view": "True"})) for one in wrappers]
    return Edits(request.edited(edits), "let gradients live in the buckets that are reduced")


def _recorded(text: str) -> Request:
    site = Site("DistributedDataParallel", "train.py", 2, arguments={"gradient_as_bucket_view": False})
    return example_request("exposed-communication", text, sites=[site])


_IMPORT = "from torch.nn.parallel import DistributedDataParallel as DDP\n"

FIXER = Fixer(
    name="ddp-view",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+exposed_comm+exposed_copy+idle",
    order=80,
    examples=(
        Example(
            _IMPORT + "model = DDP(model, device_ids=[local_rank])\n",
            _IMPORT + "model = DDP(model, device_ids=[local_rank], gradient_as_bucket_view=True)\n",
            _recorded,
        ),
        Example(
            _IMPORT + "model = DDP(model, gradient_as_bucket_view=False)\n",
            _IMPORT + "model = DDP(model, gradient_as_bucket_view=True)\n",
            _recorded,
        ),
        Example(
            "from accelerate import DistributedDataParallelKwargs\nkwargs = DistributedDataParallelKwargs()\n",
            "from accelerate import DistributedDataParallelKwargs\n"
            "kwargs = DistributedDataParallelKwargs(gradient_as_bucket_view=True)\n",
            lambda text: example_request("exposed-communication", text),
        ),
        Example(_IMPORT + "model = DDP(model, gradient_as_bucket_view=True)\n", None, _recorded),
        Example(_IMPORT + "model = DDP(model, **options)\n", None, _recorded),
        Example(_IMPORT + "model = DDP(model)\nfor p in model.parameters():\n    p.grad.detach_()\n", None, _recorded),
    ),
)
