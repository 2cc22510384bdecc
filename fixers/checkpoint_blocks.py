"""Computes blocks again in the backward pass instead of keeping what they hold, as many as memory asks for.

What it changes
    In a loop over blocks, `x = block(x)` becomes `checkpoint(block, x, use_reentrant=False)` for the blocks of a plan
    (`if number < 9`); a stack of blocks that is called as a whole becomes such a loop. Where a library holds the
    blocks, its own switch is turned on: `gradient_checkpointing_enable()`, `gradient_checkpointing=True`.

Why it helps
    What autograd keeps of a block until its backward pass goes when its forward pass is over, all but its output, and
    is made again right before it is needed. That takes the block's forward pass a second time, and only as many
    blocks do so as have to: the plan is the cheapest with which the peak stays within a budget, from the bytes and the
    times that the run measured of each block. Several budgets are tried, the largest first.

Fix safety
    Bitwise: the same operators run again on the same inputs, with the state of the random generators put back for
    dropout. Left alone: blocks with running statistics (BatchNorm) or a spectral norm, which two forward passes move
    twice, or with random numbers of a generator of their own; blocks that are checkpointed already; calls that are not
    in a loop of their own, with advice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, Site, example_request
from diagnose.memory import RecordedBlocks, plans, read_blocks, read_plan, written_plan
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.model_construction import built_model
from diagnose.source.training.block_calls import BlockCall, block_call_at, block_calls, checkpointed
from diagnose.source.training.repeated_forward import repeated_effect
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.edits import Splice, parse
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches

_ALL = "all"
_OF_THE_BATCH = re.compile(r"BatchNorm|batch_norm")
_KEPT_STATISTICS = "its blocks keep running statistics (BatchNorm), which a second forward pass would move again"
_NOTHING_KEPT = (
    "The model's blocks keep nothing on the device for the backward pass but what they return: they are frozen, run "
    "without gradients, are computed again already, or leave it on the host. To compute them again would save no "
    "memory; what holds it lies elsewhere."
)
_BY_HAND = (
    "Have blocks of the model computed again in the backward pass, "
    "`x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`, as many as memory asks for."
)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Plans, the cheapest first: which blocks are computed again, counted from 0 as they run."""
    known = _plannable(request)
    if known is None:
        return ({"again": _ALL},)
    limit = known.limit_bytes or request.facts.device_memory_bytes
    return [{"again": written_plan(plan)} for plan in plans(known, limit, request.sites)] or ({},)


def rewrite(request: Request) -> Answer:
    """Checkpoint the blocks of the setting, where the program calls them."""
    known = read_blocks(request.sites)
    library = _through_library(request, known)
    if library is not None:
        return library
    if _is_stateful(request, known):
        return Advice(f"{_BY_HAND} No edit is made: {_KEPT_STATISTICS}.")
    wanted = request.setting.get("again", _ALL)
    if not isinstance(wanted, str):
        return None
    owned = _plannable(request)
    if owned is None:
        return _by_source(request)
    return _by_plan(request, owned, wanted) if owned.saving else Advice(_NOTHING_KEPT)


def _plannable(request: Request) -> RecordedBlocks | None:
    """Return what was recorded, where every line that calls blocks is the user's, and nothing is checkpointed yet."""
    known = read_blocks(request.sites)
    if known is None or known.again or any(line.site.file not in request.sources for line in known.lines):
        return None
    return known


def _by_plan(request: Request, known: RecordedBlocks, wanted: str) -> Answer:
    again = frozenset(known.saving) if wanted == _ALL else read_plan(wanted)
    edits: list[tuple[str, list[Splice]]] = []
    for line in known.lines:
        turns = known.of_line(line, again)
        source = parse(request.sources[line.site.file]) if turns else None
        if source is None:
            continue
        place = block_call_at(source, line.site.line, line.container if line.through_container else None)
        reachable = line.in_loop or line.through_container
        made = checkpointed(place, turns, line.count) if place and reachable else "the line is no loop over blocks"
        if isinstance(made, str):
            return Advice(f"{line.site.file}:{line.site.line}: {_BY_HAND} No edit is made: {made}.")
        edits.append((line.site.file, made))
    if not edits:
        return None
    twice = repeated_effect(request.sources, {(line.site.file, line.site.line) for line in known.lines})
    if twice is not None:
        return Advice(f"{_BY_HAND} No edit is made: {twice}.")
    number, count = len(again), len(known.chain.blocks)
    which = "all blocks" if number == count else f"{number} of {count} blocks"
    if not _fits(request, known, again):
        which += " (by what was recorded not enough alone)"
    return Edits(request.edited(edits), f"compute {which} again in the backward pass instead of keeping them")


def _fits(request: Request, known: RecordedBlocks, again: Collection[int]) -> bool:
    """Whether a step holds no more than the process may take, as far as that is known."""
    limit = known.limit_bytes or request.facts.device_memory_bytes
    return limit is None or not known.whole or known.chain.peak_bytes(again) <= limit


def _by_source(request: Request) -> Answer:
    """Return the answer for all blocks of the loops that the text shows, where nothing of use was recorded."""
    edits: list[tuple[str, list[Splice]]] = []
    reasons: list[str] = []
    callers: set[tuple[str, int]] = set()
    for path, source in files_with(
        request.sources, where=lambda text: re.search(r"\bModuleList\b|\bSequential\b", text)
    ):
        for place in block_calls(source):
            made = checkpointed(place, (), None) if _is_chain(place) else "it is not one block after the other"
            if isinstance(made, str):
                reasons.append(f"{path}:{place.line}: {_BY_HAND} No edit is made: {made}.")
            else:
                edits.append((path, made))
                callers.add((path, place.line))
    twice = repeated_effect(request.sources, callers) if edits else None
    if twice is not None:
        return Advice(f"{_BY_HAND} No edit is made: {twice}.")
    if edits:
        return Edits(request.edited(edits), "compute all blocks again in the backward pass instead of keeping them")
    return Advice(reasons[0] if reasons else _BY_HAND)


def _is_chain(place: BlockCall) -> bool:
    """Whether what a block returns goes into the next: `x = block(x)`."""
    source, call = place.source, place.call
    assign = source.parent(call)
    if place.loop is None:
        return True
    if not isinstance(assign, cst.Assign) or not call.args:
        return False
    targets = {name.value for name in source.every(cst.Name, assign.targets[0].target)}
    return bool(targets & {name.value for arg in call.args for name in source.every(cst.Name, arg.value)})


def _is_stateful(request: Request, known: RecordedBlocks | None) -> bool:
    if known is not None:
        return any(line.stateful for line in known.lines)
    return any_matches(_OF_THE_BATCH, request.sources.values())


def _through_library(request: Request, known: RecordedBlocks | None) -> Answer:
    """Blocks of Hugging Face's: its own switch, where the model is built or among the Trainer's arguments."""
    if known is None or any("transformers" not in line.site.file or line.site.owned for line in known.lines):
        return None
    if known.again:
        return None
    summary = "compute all blocks again in the backward pass instead of keeping them"
    for trainer in request.trainers():
        if trainer.library == "transformers":
            placed = trainer.options.place("gradient_checkpointing", True)
            return Advice(placed.reason) if placed.reason else Edits(request.edited(placed.edits.items()), summary)
    for step in training_steps(request.sources, request.sites):
        built = built_model(step, request.sources)
        if built is not None:
            enable = "gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False})"
            quoted = enable.replace("'", '"')
            edit = after_build(built, [f"{built.name}.{quoted}"])
            return Edits(request.edited([(built.path, [edit])]), summary)
    return Advice("`model.gradient_checkpointing_enable()` after the model is built has its blocks computed again.")


_HEAD = "import torch\nfrom torch import nn\n"
_IMPORT = "from torch.utils.checkpoint import checkpoint\n"
_LOOPED = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(12)])

    def forward(self, x):
        {head}
            x = {call}
        return x
"""
_STACKED = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(12)])

    def forward(self, x):
{lines}
"""
_PLAIN = _HEAD + _LOOPED.format(head="for block in self.blocks:", call="block(x)")
_AGAIN = "checkpoint(block, x, use_reentrant=False)"


def _site(text: str, through: str, stateful: bool = False) -> Site:
    """Twelve blocks that keep a tenth of the device's memory each, beside two tenths of other things."""
    gb = 1_000_000_000
    code = "block(x)" if through == "loop" else "self.blocks(x)"
    line = text[: text.find(code)].count("\n") + 1 if code in text else 14
    held = [2 * gb + (at + 1) * gb for at in range(12)]
    columns = {
        "order": range(12),
        "place": range(12),
        "kept_bytes": [gb] * 12,
        "boundary_bytes": [gb // 20] * 12,
        "cast_bytes": [0] * 12,
        "forward_ns": [4_000_000] * 12,
        "forward_peak_bytes": held,
        "backward_peak_bytes": [each + gb // 5 for each in held],
    }
    arguments: dict[str, Scalar] = {name: ",".join(map(str, column)) for name, column in columns.items()}
    arguments |= {"through": through, "turns": 12, "stateful": stateful, "limit_bytes": 10 * gb}
    return Site(
        "blocks", "train.py", line, "Net.forward", {**arguments, "turn_peak_bytes": 15 * gb, "rest_peak_bytes": gb}
    )


def _recorded(text: str) -> Request:
    through = "container" if "Sequential" in text else "loop"
    sites = (_site(text, through, stateful="Norm" in text),)
    request = example_request("memory-pressure", text, sites=sites)
    return example_request("memory-pressure", text, sites=sites, setting=settings(request)[0])


def _text_alone(text: str) -> Request:
    return example_request("memory-pressure", text, setting={"again": _ALL})


FIXER = Fixer(
    name="checkpoint-blocks",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.allocator",
    settings=settings,
    order=70,
    conflicts=("checkpoint-fewer",),
    examples=(
        Example(
            _PLAIN,
            _HEAD
            + _IMPORT
            + _LOOPED.format(
                head="for number, block in enumerate(self.blocks):", call=f"{_AGAIN} if number < 7 else block(x)"
            ),
            _recorded,
        ),
        Example(
            _HEAD + _STACKED.format(lines="        return self.blocks(x)"),
            _HEAD
            + _IMPORT
            + _STACKED.format(
                lines="        hidden = x\n"
                "        for number, block in enumerate(self.blocks):\n"
                "            hidden = checkpoint(block, hidden, use_reentrant=False) if number < 7 else block(hidden)\n"
                "        return hidden"
            ),
            _recorded,
        ),
        Example(_PLAIN, _HEAD + _IMPORT + _LOOPED.format(head="for block in self.blocks:", call=_AGAIN), _text_alone),
        Example(_PLAIN.replace("Block()", "BatchNormBlock()"), None, _recorded),
        Example(_PLAIN.replace("x = block(x)", "ys.append(block(x))"), None, _text_alone),
        Example(_PLAIN.replace("block(x)", "block(x, debug=True)"), None, _text_alone),
    ),
)
