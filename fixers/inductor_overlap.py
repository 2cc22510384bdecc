"""Lets torch.compile move collectives of a graph beside its compute, and put small ones together.

What it changes
    Sets `torch._inductor.config.aten_distributed_optimizations.enable_overlap_scheduling = True` after the imports of
    the script that is started, and with it, as a second setting, `collective_bucketing = True`.

Why it helps
    Tensor-parallel and sequence-parallel code under torch.compile has its collectives in the graph, in the order in
    which the program wrote them: each is waited for where its value is used next. The compiler knows what else could be
    computed meanwhile.

Fix safety
    Rounding: collectives put together are reduced in other pieces. It is an option that torch has not promised to keep,
    and it has made programs slower: the trial tells. All ranks must compile the same graph, or they wait for each other
    forever, which ends the trial. Left alone: programs that set it, and those whose collectives no graph holds, as
    those of DistributedDataParallel and `fully_shard` are hooks around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.tree.edits import Splice, ensure_import, insert_after, parse, splice, top_of_program

_OPTIONS = "_inductor.config.aten_distributed_optimizations"
_IN_GRAPHS = re.compile(
    r"parallelize_module|_functional_collectives|ColwiseParallel|RowwiseParallel|SequenceParallel|distribute_tensor"
)
_COMPILES = re.compile(r"(?<!\bre)\.compile\(|torch\.compile\b")


def settings(_request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Moved alone, then also put together."""
    return {"bucketing": False}, {"bucketing": True}


def rewrite(request: Request) -> Answer:
    """Set the options at the top of the script, where graphs hold collectives."""
    text = "\n".join(request.sources.values())
    if not _IN_GRAPHS.search(text) or not _COMPILES.search(text) or "aten_distributed_optimizations" in text:
        return None
    source = parse(request.sources.get(request.entry or "", ""))
    anchor = top_of_program(source) if source is not None else None
    if source is None or anchor is None or request.entry is None:
        return None
    torch, imports = ensure_import(source, "torch")
    lines = [f"{torch}.{_OPTIONS}.enable_overlap_scheduling = True"]
    if request.setting.get("bucketing"):
        lines.append(f"{torch}.{_OPTIONS}.collective_bucketing = True")
    added = insert_after(source, anchor, [f"import torch.{_OPTIONS.rpartition('.')[0]}", *lines])
    import_line, options = added.text.split(source.newline, 1)
    separated = Splice(added.start, added.end, import_line + 2 * source.newline + options)
    files = {request.entry: splice(source.text, [*imports, separated])}
    return Edits(files, "let the compiler move collectives beside compute")


def _recorded(text: str) -> Request:
    return example_request("exposed-communication", text, setting={"bucketing": True})


_BEFORE = """import torch
from torch.distributed.tensor.parallel import parallelize_module

model = torch.compile(parallelize_module(model, mesh, plan))
"""

FIXER = Fixer(
    name="inductor-overlap",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="exposed_comm+compute+idle",
    settings=settings,
    order=80,
    after=("compile-model",),
    examples=(
        Example(
            _BEFORE,
            """import torch
from torch.distributed.tensor.parallel import parallelize_module
import torch._inductor.config

torch._inductor.config.aten_distributed_optimizations.enable_overlap_scheduling = True
torch._inductor.config.aten_distributed_optimizations.collective_bucketing = True

model = torch.compile(parallelize_module(model, mesh, plan))
""",
            _recorded,
        ),
        Example(_BEFORE.replace("torch.compile(para", "(para"), None, _recorded),
        Example("import torch\nmodel = torch.compile(DDP(model))\n", None, _recorded),
    ),
)
