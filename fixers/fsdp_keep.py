"""Keeps the parameters that the forward pass has gathered until the backward pass has used them.

What it changes
    Adds `reshard_after_forward=False` where blocks are sharded with `fully_shard`. Where memory does not hold all of
    them, `reshard_after_forward=place < 8` for as many as it does: those whose gathering costs the step most for the
    bytes that they hold, and of blocks that are alike the later ones; or, where the run did not tell, the later half.
    The model around them keeps its own parameters anyway. FullyShardedDataParallel is told the same by
    `sharding_strategy`: `SHARD_GRAD_OP` in the place of `FULL_SHARD`.

Why it helps
    By default every block drops its parameters after its forward pass and gathers them again in the backward pass: half
    as many gathers do. The later blocks are used again soonest.

Fix safety
    Bitwise: the same parameters, gathered once. Memory holds them between both passes: what does not fit ends the trial
    and is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Facts,
    Fixer,
    Gate,
    Request,
    Scalar,
    example_request,
    word_diffs,
)
from diagnose.measure.comm.fsdp_resharding import to_keep
from diagnose.memory import read_plan, written_plan
from diagnose.source.distributed.fsdp import Sharded, sharded_blocks
from diagnose.source.training.block_calls import condition
from diagnose.source.tree.arguments import argument, has_star, set_keywords
from diagnose.source.tree.edits import Splice, ensure_import, free_name, replace
from diagnose.source.tree.memo import files_with

_OPTION = "reshard_after_forward"
_ALL = "keep the parameters of blocks from forward to backward pass"
_WRAPPER = r"torch\..*\bFullyShardedDataParallel"
_ROOM = 0.9
"""The share of the device's memory that may be planned with: fragments and libraries need the rest."""


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """All blocks where they fit or may; else those that do by what was measured, or half of them."""
    chosen = _chosen(request)
    if chosen is None:
        return ({"kept": "all"},) if _fits(request) else ({"kept": "all"}, {"kept": "half"})
    place, count = chosen
    if not place:
        return ()
    return ({"kept": "all"},) if len(place) == count else ({"kept": written_plan(place), "of": count},)


def rewrite(request: Request) -> Answer:
    """Set the option on every sharded block that leaves it to its default."""
    wanted, count = str(request.setting.get("kept", "all")), request.setting.get("of")
    blocks = [one for one in sharded_blocks(request.sources) if not one.whole and _drops(one)]
    if not blocks:
        return _by_strategy(request) if wanted == "all" else None
    unknown = next((one for one in blocks if has_star(one.call)), None)
    if unknown is not None:
        return Advice(f"{unknown.line} takes its options from elsewhere: let {_OPTION} be False there.")
    if wanted == "all":
        edits = [(one.path, set_keywords(one.source, one.call, {_OPTION: "False"})) for one in blocks]
        return Edits(request.edited(edits), _ALL)
    blocks = [one for one in blocks if one.loop is not None and one.blocks is not None]
    if wanted == "half":
        edits = [(one.path, _some(one, f"{{place}} < len({_sized(one)}) // 2")) for one in blocks]
        which = "the later half of the blocks"
    else:
        if len(blocks) != 1 or blocks[0].skips_some or not isinstance(count, int):
            return None
        places = read_plan(wanted)
        dropped = condition("{place}", set(range(count)).difference(places), count)
        edits = [(one.path, _some(one, dropped)) for one in blocks]
        which = f"{len(places)} of {count} blocks"
    return request.answer(edits, _ALL.replace("blocks", which))


def _chosen(request: Request) -> tuple[tuple[int, ...], int] | None:
    """The places of the blocks that are worth keeping and fit, and how many there are; None where that is not known.

    FSDP names its modules from the model on: `layers.3` is the fourth of what a loop over `model.layers` shards.
    """
    facts, loops = (
        request.facts,
        [one for one in sharded_blocks(request.sources) if one.blocks is not None and _drops(one)],
    )
    every = to_keep(request.finding, None)
    if facts.peak_memory_bytes is None or facts.device_memory_bytes is None or not every or len(loops) != 1:
        return None
    room = round(_ROOM * facts.device_memory_bytes) - facts.peak_memory_bytes
    places = [_place(name, str(loops[0].blocks)) for name in every]
    numbers = sorted(place for place in places if place is not None)
    if numbers != list(range(len(every))):
        return None
    fitting = [_place(name, str(loops[0].blocks)) for name in to_keep(request.finding, room)]
    return tuple(sorted(place for place in fitting if place is not None)), len(every)


def _place(name: str, blocks: str) -> int | None:
    """Return where a module stands among the blocks that a loop goes through."""
    container, _, number = name.rpartition(".")
    code = re.sub(r"\.(?:children|values)\(\)$|^list\((.*)\)$", r"\1", blocks)
    same = f".{code}".endswith(f".{container}") if container else "." not in code
    return int(number) if number.isdecimal() and same else None


def _by_strategy(request: Request) -> Answer:
    """Keep the blocks of FullyShardedDataParallel, which shards what lies within the module that it is given."""
    edits: list[tuple[str, list[Splice]]] = []
    for path, source in files_with(request.sources, "FullyShardedDataParallel"):
        for call in source.every(cst.Call):
            if not any(re.fullmatch(_WRAPPER, name) for name in source.names(call.func)):
                continue
            given = argument(call, "sharding_strategy", 2)
            if given is not None and source.code(given.value).endswith(".FULL_SHARD"):
                kept = source.code(given.value).removesuffix("FULL_SHARD") + "SHARD_GRAD_OP"
                edits.append((path, [replace(source, given.value, kept)]))
            elif given is None and not has_star(call):
                torch, imports = ensure_import(source, "torch")
                keywords = {"sharding_strategy": f"{torch}.distributed.fsdp.ShardingStrategy.SHARD_GRAD_OP"}
                edits.append((path, [*imports, *set_keywords(source, call, keywords)]))
    return request.answer(edits, _ALL)


def _drops(one: Sharded) -> bool:
    given = argument(one.call, _OPTION)
    return given is None or one.source.code(given.value) in {"True", "None"}


def _some(one: Sharded, dropped: str) -> list[Splice]:
    """Return the edit with which some blocks drop their parameters, by a test of their `{place}`:
    `reshard_after_forward=place < 8`."""
    loop, source = one.loop, one.source
    assert loop is not None  # or it would not be chosen from
    edits: list[Splice] = []
    if isinstance(loop.target, cst.Tuple):
        place = source.code(loop.target.elements[0].value)
    else:
        place = free_name(source, "place")
        edits.append(replace(source, loop.target, f"{place}, {source.code(loop.target)}"))
        edits.append(replace(source, loop.iter, f"enumerate({source.code(loop.iter)})"))
    return [*edits, *set_keywords(source, one.call, {_OPTION: dropped.replace("{place}", place)})]


def _sized(one: Sharded) -> str:
    """The blocks as something that has a length."""
    return f"list({one.blocks})" if str(one.blocks).endswith(")") else str(one.blocks)


def _fits(request: Request) -> bool:
    """Whether all that is gathered again surely fits beside the peak."""
    facts = request.facts
    gathered = [float(one.value) for one in request.finding.evidence if one.measure == "gathered again per step"]
    if facts.peak_memory_bytes is None or facts.device_memory_bytes is None or not gathered:
        return False
    return facts.peak_memory_bytes + gathered[0] <= _ROOM * facts.device_memory_bytes


def _recorded(text: str, kept: str = "all") -> Request:
    return example_request("regathering-parameters", text, setting={"kept": kept}, facts=Facts())


_IMPORT = "from torch.distributed.fsdp import fully_shard\n"

FIXER = Fixer(
    name="fsdp-keep",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_comm+exposed_copy+compute+idle",
    settings=settings,
    order=80,
    examples=(
        Example(
            _IMPORT + "for block in model.blocks:\n    fully_shard(block, mp_policy=policy)\nfully_shard(model)\n",
            _IMPORT
            + "for block in model.blocks:\n    fully_shard(block, mp_policy=policy, reshard_after_forward=False)\n"
            "fully_shard(model)\n",
            _recorded,
        ),
        Example(
            _IMPORT + "for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)\n",
            _IMPORT + "for place, block in enumerate(model.blocks):\n"
            "    fully_shard(block, reshard_after_forward=place < len(model.blocks) // 2)\nfully_shard(model)\n",
            lambda text: _recorded(text, "half"),
        ),
        Example(
            _IMPORT + "for layer in model.layers:\n    fully_shard(layer)\nfully_shard(model)\n",
            _IMPORT + "for place, layer in enumerate(model.layers):\n"
            "    fully_shard(layer, reshard_after_forward=place < 8)\nfully_shard(model)\n",
            lambda text: example_request("regathering-parameters", text, setting={"kept": "8-11", "of": 12}),
        ),
        *word_diffs(
            _recorded,
            _IMPORT + "fully_shard(net.encoder, reshard_after_forward={-True-}{+False+})\nfully_shard(net)\n",
        ),
        Example(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
            "model = FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.FULL_SHARD)\n",
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
            "model = FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n",
            _recorded,
        ),
        *word_diffs(
            _recorded,
            (
                "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel\n"
                "model = FullyShardedDataParallel({+\n    +}model{+, "
                "sharding_strategy=torch.distributed.fsdp.ShardingStrategy.SHARD_GRAD_OP\n+})\n"
            ),
            (
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "model = FSDP(model, sharding_strategy=args.strategy)\n"
            ),
            _IMPORT + "for b in m.layers:\n    fully_shard(b, reshard_after_forward=False)\n",
            _IMPORT + "for b in m.layers:\n    fully_shard(b, reshard_after_forward=8)\n",
            _IMPORT + "for b in m.layers:\n    fully_shard(b, **options)\nfully_shard(m)\n",
        ),
    ),
)
