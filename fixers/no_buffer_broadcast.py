"""Stops sending the buffers of the first rank to all others in every forward pass.

What it changes
    Adds `broadcast_buffers=False` to DistributedDataParallel (or to what tells a library how to make it).

Why it helps
    Before every forward pass, buffers travel from the first rank to all others: a collective that nothing hides, since
    the forward pass waits for it.

Fix safety
    Bitwise where no buffer changes, as positions and masks do not. Running statistics of BatchNorm do change, and would
    differ from rank to rank, though a checkpoint of the first rank has its own either way: with BatchNorm, and where
    the program writes to a buffer, it is the training class, which is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import libcst as cst

from diagnose.fixer import Answer, Edits, Fixer, Gate, Request, example_request, patched
from diagnose.source.dataflow.bindings import parameter_of
from diagnose.source.dataflow.mutations import written_in_place
from diagnose.source.distributed.data_parallel import data_parallel
from diagnose.source.tree.arguments import argument, set_keywords
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source, parse

_CHANGES = re.compile(
    r"BatchNorm|batch_norm|InstanceNorm|SpectralNorm|spectral_norm|torchvision\.models|\btimm\b|EMA\b"
)


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
    if any(_CHANGES.search(text) for text in request.sources.values()):
        return True
    sources = [source for text in request.sources.values() if (source := parse(text)) is not None]
    buffers: set[str] = set()
    for source in sources:
        for call in source.every(cst.Call) if "register_buffer" in source.text else ():
            given = argument(call, "name", 0) if call_name(call) == "register_buffer" else None
            if given is not None and (name := string(given.value)) is None:
                return True  # which one it is, only the running program knows
            buffers |= {name} if given is not None and name is not None else set()
    return any(_is_written(source, buffers, sources) for source in sources)


def _is_written(source: Source, buffers: Collection[str], sources: Sequence[Source]) -> bool:
    """Whether a file assigns to one of these attributes, writes into it, or hands it to what writes."""
    written: list[cst.CSTNode] = [*written_in_place(source)]
    written += [target.target for target in source.every(cst.AssignTarget)]
    written += [arg.value for call in source.every(cst.Call) if _may_write(source, call, sources) for arg in call.args]
    return any(isinstance(each, cst.Attribute) and each.attr.value in buffers for each in written)


def _may_write(source: Source, call: cst.Call, sources: Sequence[Source]) -> bool:
    """Whether a call is a collective, a module, or a function of the program that writes to something it is given."""
    if any(name.startswith("torch.distributed.") for name in source.names(call.func)):
        return True
    name = call_name(call)
    called = [(one, each) for one in sources for each in one.every(cst.FunctionDef) if each.name.value == name]
    of_self = isinstance(call.func, cst.Attribute) and source.code(call.func.value) == "self"
    return (of_self and not called) or any(
        isinstance(each, cst.Name) and parameter_of(function, each.value) is not None
        for one, function in called
        for each in written_in_place(one, function)
    )


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
