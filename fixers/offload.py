"""Keeps what blocks hold for the backward pass in the host's memory, for as many blocks as memory asks for.

What it changes
    In a loop over blocks, `x = block(x)` runs within `offload(number < 9)` of `diagnose.kernels`; a stack of blocks
    that is called as a whole becomes such a loop.

Why it helps
    What autograd keeps of a block lies idle from its forward pass to its backward pass. A copy engine takes it to
    pinned memory of the host beside the computation, and brings it back in time. Where a block computes for longer than
    its copies take, that costs nothing, and checkpointing would cost a second forward pass.

Fix safety
    Bitwise: what comes back is what was saved. The host needs as much memory as the device is relieved of, pinned.
    Left alone: programs that compile their model or record CUDA graphs, whose saved tensors are not handed out one by
    one; programs that checkpoint already, or keep saved tensors elsewhere themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, Site, example_request
from diagnose.memory import RecordedBlocks, plans, read_blocks, read_plan, written_plan
from diagnose.source.models.compilation import compilations
from diagnose.source.training.block_calls import block_call_at, within_context
from diagnose.source.tree.edits import Splice, ensure_from_import, parse
from diagnose.source.tree.text_lines import any_matches

_OTHERWISE = re.compile(
    r"\bcheckpoint(?:_sequential)?\(|gradient_checkpointing|saved_tensors_hooks|save_on_cpu|\boffload\("
    r"|CUDAGraph\(|make_graphed_callables\(|cuda\.graph\("
)
_BY_HAND = (
    "What autograd keeps can lie in pinned memory of the host: "
    "`with torch.autograd.graph.save_on_cpu(pin_memory=True):` around a part of the forward pass."
)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Plans, the fewest blocks first, counted from 0 as they run."""
    known = read_blocks(request.sites)
    if known is None:
        return ({},)
    limit = known.limit_bytes or request.facts.device_memory_bytes
    return [{"blocks": written_plan(plan)} for plan in plans(known, limit, request.sites)] or ({},)


def rewrite(request: Request) -> Answer:
    """Put the calls of the setting's blocks into the context."""
    known = read_blocks(request.sites)
    wanted = request.setting.get("blocks")
    if known is None or not isinstance(wanted, str) or known.again:
        return None
    if compilations(request.sources) or any_matches(_OTHERWISE, request.sources.values()):
        return None
    if any(line.site.file not in request.sources for line in known.lines):
        return Advice(f"{_BY_HAND} No edit is made: the blocks are called by a library.")
    return _by_plan(request, known, read_plan(wanted))


def _by_plan(request: Request, known: RecordedBlocks, chosen: frozenset[int]) -> Answer:
    edits: list[tuple[str, list[Splice]]] = []
    for line in known.lines:
        turns = known.of_line(line, chosen)
        source = parse(request.sources[line.site.file]) if turns else None
        if source is None:
            continue
        place = block_call_at(source, line.site.line, line.container if line.through_container else None)
        made: list[Splice] | str = "the line is no loop over blocks"
        if place is not None and (line.in_loop or line.through_container):
            (context,), imports = ensure_from_import(source, "diagnose.kernels", ["offload"])
            made = within_context(place, turns, line.count, context, imports)
        if isinstance(made, str):
            return Advice(f"{line.site.file}:{line.site.line}: {_BY_HAND} No edit is made: {made}.")
        edits.append((line.site.file, made))
    if not edits:
        return None
    number, count = len(chosen), len(known.chain.blocks)
    which = "all blocks" if number == count else f"{number} of {count} blocks"
    return Edits(request.edited(edits), f"keep the activations of {which} in the host's memory until they are needed")


_HEAD = "import torch\nfrom torch import nn\n"
_NEW_HEAD = "import torch\nfrom diagnose.kernels import offload\nfrom torch import nn\n"
_NET = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.{kind}(*[Block() for _ in range(4)])

    def forward(self, x):
{lines}
        return x
"""
_LOOP = "        for block in self.blocks:\n            x = block(x)"
_OFFLOADED = (
    "        for number, block in enumerate(self.blocks):\n"
    "            with offload(number < 3):\n"
    "                x = block(x)"
)


def _recorded(text: str) -> Request:
    """Four blocks, of which three go to the host."""
    code, through = ("self.blocks(x)", "container") if "Sequential" in text else ("block(x)", "loop")
    arguments: dict[str, Scalar] = dict.fromkeys(("kept_bytes", "forward_ns", "forward_peak_bytes"), "9,9,9,9")
    arguments |= {"order": "0,1,2,3", "place": "0,1,2,3", "boundary_bytes": "1,1,1,1", "cast_bytes": "0,0,0,0"}
    arguments |= {"backward_peak_bytes": "9,18,27,36", "through": through, "turns": 4}
    line = text[: text.find(code)].count("\n") + 1
    sites = (Site("blocks", "train.py", line, "Net.forward", arguments),)
    return example_request("memory-pressure", text, sites=sites, setting={"blocks": "0-2"})


FIXER = Fixer(
    name="offload",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.allocator",
    settings=settings,
    order=71,
    conflicts=("checkpoint-blocks", "compile-model", "cuda-graphs"),
    after=("checkpoint-blocks", "memory-budget"),
    examples=(
        Example(
            _HEAD + _NET.format(kind="ModuleList", lines=_LOOP),
            _NEW_HEAD + _NET.format(kind="ModuleList", lines=_OFFLOADED),
            _recorded,
        ),
        Example(
            _HEAD + _NET.format(kind="Sequential", lines="        x = self.blocks(x)"),
            _NEW_HEAD + _NET.format(kind="Sequential", lines=_OFFLOADED),
            _recorded,
        ),
        Example(
            _HEAD + _NET.format(kind="ModuleList", lines=_LOOP.replace("block(x)", "checkpoint(block, x)")),
            None,
            _recorded,
        ),
        Example(_HEAD + _NET.format(kind="ModuleList", lines=_LOOP) + "net = torch.compile(Net())\n", None, _recorded),
    ),
)
