"""Lets neighbouring blocks that are sharded one by one be gathered together.

What it changes
    A loop `for layer in model.layers: fully_shard(layer)` becomes one over two or four blocks at a time,
    `fully_shard(layers[place : place + 2])`: a list of modules is one group of parameters.

Why it helps
    Every gather and every reduction has a latency of its own, on the link and on the host, however few bytes it moves.
    Small blocks pay more for that than for their bytes. A group is gathered before its first block runs, and its
    gradients are reduced once, after all of them are there.

Fix safety
    Rounding: with more than two ranks, a gradient's place in its group decides in which order the ranks are added up.
    Memory holds a group whole where it held one block. Left alone: loops that do anything else, or skip some blocks;
    programs that checkpoint blocks, whose second forward pass runs them one by one; programs that address blocks
    afterwards (prefetching, resharding by hand, a name of their own for the loop).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.fixer import Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.distributed.fsdp import Sharded, sharded
from diagnose.source.tree.edits import Splice, free_name, insert_above, replace

_TOGETHER = (2, 4)
_OTHERWISE = re.compile(
    r"\bcheckpoint|set_modules_to_|set_reshard_after_|\.unshard\(|\.reshard\(|torch\.compile|\.compile\("
)


def settings(_request: Request) -> Sequence[Mapping[str, Scalar]]:
    """How many blocks are gathered together."""
    return tuple({"together": together} for together in _TOGETHER)


def rewrite(request: Request) -> Answer:
    """Shard so many blocks at a time in the one loop that does it."""
    together = request.setting.get("together", _TOGETHER[0])
    if any(_OTHERWISE.search(text) for text in request.sources.values()):
        return None
    loops = [one for one in sharded(request.sources) if one.loop is not None]
    if len(loops) != 1 or not _does_nothing_else(loops[0]):
        return None
    return Edits(
        request.edited([(loops[0].path, _grouped(loops[0], int(str(together))))]),
        f"gather the parameters of {together} blocks together",
    )


def _does_nothing_else(one: Sharded) -> bool:
    loop, source = one.loop, one.source
    if loop is None or one.blocks is None or one.skips_some or not isinstance(loop.target, cst.Name):
        return False
    small = list(loop.body.body)
    first = small[0] if len(small) == 1 else None
    if isinstance(first, cst.SimpleStatementLine):
        first = first.body[0] if len(first.body) == 1 else None
    alone = isinstance(first, cst.Expr) and first.value is one.call and loop.orelse is None
    name = loop.target.value
    named = sum(each.value == name for each in source.every(cst.Name, loop))
    return alone and named == 2 and one.call.args[0].keyword is None


def _grouped(one: Sharded, together: int) -> list[Splice]:
    loop, source = one.loop, one.source
    assert loop is not None  # as was asked before
    whole, place = free_name(source, "blocks"), free_name(source, "place")
    return [
        insert_above(source, loop, [f"{whole} = list({one.blocks})"]),
        replace(source, loop.target, place),
        replace(source, loop.iter, f"range(0, len({whole}), {together})"),
        replace(source, one.call.args[0].value, f"{whole}[{place} : {place} + {together}]"),
    ]


def _recorded(text: str) -> Request:
    return example_request("exposed-communication", text, setting={"together": 2})


_BEFORE = """from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
"""
_PLAIN = "    fully_shard(layer, mp_policy=policy)\n"

FIXER = Fixer(
    name="fsdp-group",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="exposed_comm+exposed_copy+compute+idle",
    settings=settings,
    order=80,
    conflicts=("fsdp-prefetch",),
    after=("fsdp-keep", "fsdp-accumulate", "fsdp-prefetch"),
    examples=(
        Example(
            _BEFORE,
            """from torch.distributed.fsdp import fully_shard

blocks = list(model.layers)
for place in range(0, len(blocks), 2):
    fully_shard(blocks[place : place + 2], mp_policy=policy)
fully_shard(model, mp_policy=policy)
""",
            _recorded,
        ),
        Example(_BEFORE.replace(_PLAIN, f"{_PLAIN}    layer.train()\n"), None, _recorded),
        Example(_BEFORE.replace(_PLAIN, f"    if layer.wide:\n    {_PLAIN}"), None, _recorded),
        Example(_BEFORE.replace("layer in", "name, layer in").replace("layers:", "layers.items():"), None, _recorded),
        Example(_BEFORE + "model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])\n", None, _recorded),
        Example(_BEFORE + "y = checkpoint(model.layers[0], x)\n", None, _recorded),
        Example("from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n", None, _recorded),
    ),
)
