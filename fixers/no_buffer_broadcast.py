"""Stops sending the buffers of the first rank to all others in every forward pass.

What it changes
    Adds `forward_sync_buffers=False` to DistributedDataParallel (or to what tells a library how to make it), or with
    torch before 2.13 `broadcast_buffers=False`.

Why it helps
    Before every forward pass, buffers travel from the first rank to all others: a collective that nothing hides, since
    the forward pass waits for it.

Fix safety
    Bitwise where no buffer changes, as positions and masks do not. Running statistics of BatchNorm do change, and would
    differ from rank to rank, though a checkpoint of the first rank has its own either way: with BatchNorm, and where
    the program writes to a buffer, it is the training class, which is asked for. `broadcast_buffers=False` also leaves
    ranks the buffers that they begin with: where the program draws those, it is the training class as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import libcst as cst

from diagnose.fixer import Answer, Edits, Facts, Fixer, Gate, Request, example_request, word_diffs
from diagnose.source.dataflow.bindings import parameter_of
from diagnose.source.dataflow.mutations import written_in_place
from diagnose.source.distributed.data_parallel import DataParallel, data_parallel, option_of_buffers
from diagnose.source.tree.arguments import argument, set_keywords
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with, parse_all
from diagnose.source.tree.syntax import Source
from diagnose.source.tree.text_lines import any_matches

_CHANGES = re.compile(
    r"BatchNorm|batch_norm|InstanceNorm|SpectralNorm|spectral_norm|torchvision\.models|\btimm\b|EMA\b"
)

_FORMER = "broadcast_buffers"
_OF_ACCELERATE = "DistributedDataParallelKwargs"
"""A dataclass with fields of its own, which knows the former name alone."""
_DIFFERS = re.compile(r"rand|normal|uniform|bernoulli|rank")
"""Code that may give each rank another buffer."""


def rewrite(request: Request) -> Answer:
    """Set the option on every wrapper that leaves it to its default, which is True."""
    found = data_parallel(request.sources, request.sites)
    named = [(one, name) for one in found if (name := _option(one, request.facts)) is not None]
    if not named:
        return None
    edits = [(one.path, set_keywords(one.source, one.call, {name: "False"})) for one, name in named]
    begins = any(name == _FORMER for _, name in named) and _may_begin_otherwise(request)
    gate = Gate.TRAINING if begins or _may_change(request) else Gate.BITWISE
    return Edits(request.edited(edits), "do not send buffers before every forward pass", gate)


def _option(one: DataParallel, facts: Facts) -> str | None:
    """The option to set: the one that the call has, else by the name that this torch knows; None where it is set."""
    name = option_of_buffers(facts) if call_name(one.call) != _OF_ACCELERATE else _FORMER
    name = _FORMER if one.code(_FORMER) is not None and one.code(name) is None else name
    return name if not one.keeps_own_buffers and one.leaves(name, default="True") else None


def _may_begin_otherwise(request: Request) -> bool:
    """Whether ranks may build different buffers, which only their first synchronization makes alike."""
    for _, source in files_with(request.sources, "register_buffer"):
        for call in source.calls_named("register_buffer"):
            if _DIFFERS.search(source.code(source.inside(call, cst.FunctionDef) or call)):
                return True
    return False


def _may_change(request: Request) -> bool:
    """Whether a module may write to a buffer in its forward pass."""
    if any_matches(_CHANGES, request.sources.values()):
        return True
    sources = list(parse_all(request.sources).values())
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
    examples=word_diffs(
        _recorded,
        _IMPORT + "model = DistributedDataParallel(model{+, broadcast_buffers=False+})\n",
        _IMPORT + "model = DistributedDataParallel(model, broadcast_buffers=False)\n",
        _IMPORT + "model = DistributedDataParallel(model, **options)\n",
    ),
)
