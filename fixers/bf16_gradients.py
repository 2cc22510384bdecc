"""Sends gradients between ranks in bfloat16.

What it changes
    Registers torch's `bf16_compress_hook` on the DistributedDataParallel right after it is made.

Why it helps
    Over a slow link the bytes of gradients decide, and half of them travel.

Fix safety
    Training: gradients are rounded to 8 bits of precision before they are added up, divided by the number of ranks
    first. Between devices that are linked well, the conversion costs more than it saves; the trial tells. Left alone:
    programs with a hook of their own, of which there can be only one, and gradients that are in half precision already.
    The hook needs NCCL; of gradients that go over gloo there is advice.
"""

from __future__ import annotations

from diagnose.fixer import Advice, Answer, Example, Fixer, Gate, Request, example_request
from diagnose.source.distributed.data_parallel import carried_by_gloo, hooked_gradients

_MODULE = "torch.distributed.algorithms.ddp_comm_hooks"


def rewrite(request: Request) -> Answer:
    """Register the hook after the wrapper is made."""
    hook = hooked_gradients(
        request.sources,
        request.sites,
        f"from {_MODULE} import default_hooks",
        "{name}.register_comm_hook({group}, default_hooks.bf16_compress_hook)",
    )
    if hook and carried_by_gloo(request.sources, request.sites):
        return Advice("these ranks exchange gradients over gloo, and torch's hook for bfloat16 needs NCCL")
    return request.answer(hook, "send gradients in bfloat16")


def _recorded(text: str) -> Request:
    return example_request("slow-link", text)


_BEFORE = """import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
"""

FIXER = Fixer(
    name="bf16-gradients",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    mechanism="exposed_comm+compute+idle",
    order=80,
    conflicts=("powersgd-gradients",),
    after=("ddp-buckets", "no-sync"),
    examples=(
        Example(
            _BEFORE,
            """import torch
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

model = DistributedDataParallel(model, device_ids=[rank])
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
optimizer = torch.optim.AdamW(model.parameters())
""",
            _recorded,
        ),
        # Without its group, the hook would add up the gradients of other stages of a pipeline.
        Example(
            _BEFORE.replace("[rank])", "[rank], process_group=replicas)"),
            """import torch
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

model = DistributedDataParallel(model, device_ids=[rank], process_group=replicas)
model.register_comm_hook(model.process_group, default_hooks.bf16_compress_hook)
optimizer = torch.optim.AdamW(model.parameters())
""",
            _recorded,
        ),
        Example(_BEFORE + "model.register_comm_hook(state, hook)\n", None, _recorded),
        Example(_BEFORE.replace("(model, dev", "(model.bfloat16(), dev"), None, _recorded),
        Example(_BEFORE.replace("model = Dis", "models[0] = other = Dis"), None, _recorded),
    ),
)
