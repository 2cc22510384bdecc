"""Lets sharded blocks gather the parameters of the next two or three blocks ahead.

What it changes
    After the blocks and the model are sharded with `fully_shard`, adds a loop that names for each block those to gather
    ahead, in the forward pass and in the backward pass.

Why it helps
    By default one block is gathered ahead, and its gather is issued when the one before begins to compute. Where a
    gather takes longer than a block computes, or the host issues it late, the device waits. Two or three ahead keep the
    link busy.

Fix safety
    Bitwise: the same parameters, earlier. Memory holds as many blocks whole as are gathered ahead. Programs that name
    blocks to gather themselves are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.distributed.fsdp import sharded
from diagnose.source.tree.edits import free_name, insert_after

_AHEAD = (2, 3)
_NAMES = ("blocks", "place", "block")


def settings(_request: Request) -> Sequence[Mapping[str, Scalar]]:
    """How many blocks to gather ahead; one is the default."""
    return tuple({"ahead": ahead} for ahead in _AHEAD)


def rewrite(request: Request) -> Answer:
    """Name the blocks to gather ahead after the model itself is sharded."""
    if any("set_modules_to_" in text for text in request.sources.values()):
        return None
    calls = sharded(request.sources)
    inner = [one for one in calls if one.loop is not None and one.blocks is not None]
    outer = [one for one in calls if one.whole]
    if len(inner) != 1 or len(outer) != 1 or inner[0].path != outer[0].path:
        return None
    source, blocks = inner[0].source, inner[0].blocks
    statement = source.statement(outer[0].call)
    if (
        inner[0].skips_some
        or statement is None
        or source.parent(statement) is not source.parent(inner[0].loop or statement)
    ):
        return None
    ahead = request.setting.get("ahead", _AHEAD[0])
    whole, place = (free_name(source, name) for name in _NAMES[:2])
    block = inner[0].module
    lines = [
        f"{whole} = list({blocks})",
        f"for {place}, {block} in enumerate({whole}):",
        f"{source.indentation}{block}.set_modules_to_forward_prefetch("
        f"{whole}[{place} + 1 : {place} + {int(str(ahead)) + 1}])",
        f"{source.indentation}{block}.set_modules_to_backward_prefetch("
        f"{whole}[max(0, {place} - {ahead}) : {place}][::-1])",
    ]
    files = request.edited([(inner[0].path, [insert_after(source, statement, lines)])])
    return Edits(files, f"gather the parameters of {ahead} blocks ahead")


def _recorded(text: str) -> Request:
    return example_request("exposed-communication", text, setting={"ahead": 2})


_BEFORE = """from torch.distributed.fsdp import fully_shard
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = AdamW(model.parameters())
"""

FIXER = Fixer(
    name="fsdp-prefetch",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_comm+exposed_copy+compute+idle",
    settings=settings,
    order=80,
    after=("fsdp-keep",),
    examples=(
        Example(
            _BEFORE,
            _BEFORE.replace(
                "optimizer",
                "blocks = list(model.layers)\nfor place, layer in enumerate(blocks):\n"
                "    layer.set_modules_to_forward_prefetch(blocks[place + 1 : place + 3])\n"
                "    layer.set_modules_to_backward_prefetch(blocks[max(0, place - 2) : place][::-1])\noptimizer",
            ),
            _recorded,
        ),
        Example(_BEFORE + "model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])\n", None, _recorded),
        Example("from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n", None, _recorded),
    ),
)
