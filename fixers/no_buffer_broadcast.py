"""Stops sending the buffers of the first rank to all others in every forward pass.

What it changes
    Adds `broadcast_buffers=False` to DistributedDataParallel (or to what tells a library how to make it).

Why it helps
    Before every forward pass, buffers travel from the first rank to all others: a collective that nothing hides, since
    the forward pass waits for it.

Fix safety
    Bitwise where no buffer changes, as positions and masks do not. Running statistics of BatchNorm do change, and would
    differ from rank to rank, though a checkpoint of the first rank has its own either way: with BatchNorm it is the
    training class, which is asked for.
"""

from __future__ import annotations

import re

from diagnose.fixer import Answer, Edits, Fixer, Gate, Request, example_request, patched
from diagnose.source.distributed.data_parallel import data_parallel
from diagnose.source.tree.arguments import set_keywords

_CHANGES = re.compile(
    r"BatchNorm|batch_norm|InstanceNorm|SpectralNorm|spectral_norm|torchvision\.models|\btimm\b|EMA\b"
)
_ASSIGNS = re.compile(r"register_buffer\(\s*[\"'](\w+)[\"']")


def rewrite(request: Request) -> Answer:
    """Set the option on every wrapper that leaves it to its default, which is True."""
    found = data_parallel(request.sources, request.sites)
    wrappers = [one for one in found if one.leaves("broadcast_buffers", default="True")]
    if not wrappers:
        return None
    edits = [(one.path, set_keywords(one.source, one.call, {"broadcast_buffers": "False"})) for one in wrappers]
    gate = Gate.TRAINING if _may_change(request) else Gate.BITWISE
    return Edits(request.edited(edits), "do not send buffers before every forward pass", gate)


def _may_change(request: Request) -> bool:
    """Whether a module may write to a buffer in its forward pass."""
    text = "\n".join(request.sources.values())
    if _CHANGES.search(text):
        return True
    written = (
        r"self\.{name}\b(?:\[[^\]]*\])?\s*(?:[-+*/@]?=(?!=)|\.(?:\w+_)\()"
        r"|out\s*=\s*self\.{name}\b|self\.\w+\([^()\n]*self\.{name}\b"
    )
    return any(re.search(written.format(name=name), text) for name in _ASSIGNS.findall(text))


def _recorded(text: str) -> Request:
    return example_request("exposed-communication", text)


_IMPORT = "from torch.nn.parallel import DistributedDataParallel\n"

FIXER = Fixer(
    name="no-buffer-broadcast",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    mechanism="exposed_comm+exposed_copy+compute+idle",
    order=80,
    examples=patched(
        _recorded,
        _IMPORT + "model = DistributedDataParallel(model{+, broadcast_buffers=False+})\n",
        _IMPORT + "model = DistributedDataParallel(model, broadcast_buffers=False)\n",
        _IMPORT + "model = DistributedDataParallel(model, **options)\n",
    ),
)
