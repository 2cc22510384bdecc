"""The blocks of a recorded run, from the sites that its lines left (`collect/inside/probes/blocks` measures
them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnose.memory.chain import Block, Chain
from diagnose.model import Site

KIND = "blocks"
_COLUMNS = ("kept_bytes", "boundary_bytes", "cast_bytes", "forward_ns", "forward_peak_bytes", "backward_peak_bytes")
_OF_CALLS = ("forward_ns", "backward_peak_bytes")
_AGAIN_PEAK = "again_peak_bytes"
_NEAR = 0.02
"""Bytes that differ by no more than this part are the same: blocks that keep them do the same work."""


@dataclass(frozen=True)
class Line:
    """A line that calls blocks one after the other."""

    site: Site
    order: tuple[int, ...]
    """The places of its blocks in the chain of the whole model, in the order in which the line calls them."""
    turns: tuple[int, ...]
    """The turns of a loop over them in which they run."""
    count: int
    """The turns of that loop."""

    @property
    def in_loop(self) -> bool:
        """Whether the line itself calls them, one a turn."""
        return self.site.arguments.get("through") == "loop"

    @property
    def through_container(self) -> bool:
        """Whether the line calls their container, which calls them."""
        return self.site.arguments.get("through") == "container"

    @property
    def container(self) -> str:
        """The name of what holds them, from the module that the program calls: `transformer.h`."""
        return str(self.site.arguments.get("container") or "")

    @property
    def stateful(self) -> bool:
        """Whether a second forward pass leaves something behind: running statistics."""
        return self.site.arguments.get("stateful") is True


@dataclass(frozen=True)
class RecordedBlocks:
    """All blocks of a model."""

    lines: tuple[Line, ...]
    chain: Chain
    """The chain as it would be if nothing were computed again."""
    again: tuple[int, ...] = ()
    """The blocks that the recorded program computed again already."""
    limit_bytes: int | None = None
    """The memory that the process may take of the device."""
    held_bytes: int = 0
    """The memory that was held when the first block began: parameters, and what else had been made by then."""
    fragment_bytes: int = 0
    """The memory that the allocator had taken of the device beyond what was held, and could not give back."""
    whole: bool = True
    """Whether peaks of a whole step are known; False where the program ended in the first, or has no allocator."""

    @property
    def saving(self) -> tuple[int, ...]:
        """The blocks that keep more than what they return: not those that are frozen, or run without gradients.

        A device's allocator rounds sizes up, which is no more than that.
        """
        blocks = enumerate(self.chain.blocks)
        return tuple(place for place, block in blocks if block.saved_bytes > _NEAR * block.kept_bytes)

    def of_line(self, line: Line, again: Iterable[int]) -> tuple[int, ...]:
        """Return the iterations of a line's loop that a plan recomputes, counted from 0."""
        chosen = frozenset(again)
        return tuple(turn for turn, place in zip(line.turns, line.order, strict=True) if place in chosen)


def read_blocks(sites: Sequence[Site]) -> RecordedBlocks | None:
    """Return the recorded blocks of the model; None where none were recorded, or they do not fit together."""
    found = [_read(site) for site in sites if site.kind == KIND]
    parts = [part for part in found if part is not None]
    by_order = {place: block for part in parts for place, block in part.blocks.items()}
    if not by_order or sorted(by_order) != list(range(len(by_order))):
        return None
    site = parts[0].line.site
    turn, back, rest = (_number(site, f"{name}_peak_bytes") for name in ("turn", "back", "rest"))
    blocks = _alike([by_order[place] for place in range(len(by_order))])
    whole = turn is not None and rest is not None and all(block.backward_peak_bytes > 0 for block in blocks)
    sizes = {place: size for part in parts for place, size in part.again.items()}
    chain = _undo_recomputation(Chain(tuple(blocks), turn or 0, rest or 0, back or 0), sizes)
    return RecordedBlocks(
        tuple(part.line for part in parts),
        chain,
        tuple(sorted(sizes)),
        limit_bytes=_number(site, "limit_bytes"),
        held_bytes=_number(site, "held_bytes") or 0,
        fragment_bytes=_number(site, "fragment_bytes") or 0,
        whole=whole,
    )


@dataclass(frozen=True)
class _Part:
    line: Line
    blocks: dict[int, Block]
    again: dict[int, int]
    """The memory that a block took while it was computed again, by place."""


def _read(site: Site) -> _Part | None:
    columns = {name: _numbers(site, name) for name in _COLUMNS}
    order, known = _numbers(site, "order"), len(columns["kept_bytes"])
    if known < len(order):
        order = (*order, *range(order[-1] + 1, _number(site, "blocks") or 0))
        columns |= {name: (*columns[name], *[-1] * (len(order) - len(columns[name]))) for name in _OF_CALLS}
    count = len(order)
    if not known or any(len(column) not in (known, count) for column in columns.values()):
        return None
    # The block in which memory ran out, and those after it, are taken to be like the last that came to its end.
    rows = [min(at, known - 1) for at in range(count)]
    peaks_again = _numbers(site, _AGAIN_PEAK)
    again_bytes, again_ns = _numbers(site, "again_bytes"), _numbers(site, "again_ns")
    blocks = {}
    for at, row in enumerate(rows):
        forward_ns = columns["forward_ns"][at]
        if again_ns and again_ns[at] > 0:
            forward_ns = again_ns[at]
        blocks[order[at]] = Block(
            kept_bytes=columns["kept_bytes"][row],
            boundary_bytes=columns["boundary_bytes"][row],
            recompute_ns=max(forward_ns, 0),
            forward_peak_bytes=columns["forward_peak_bytes"][row],
            backward_peak_bytes=columns["backward_peak_bytes"][at],
            cast_bytes=columns["cast_bytes"][row],
            again_peak_bytes=peaks_again[at] if at < len(peaks_again) else 0,
        )
    again = {order[at]: size for at, size in enumerate(again_bytes) if size > 0}
    return _Part(_line(site, order), blocks, again)


def _line(site: Site, order: tuple[int, ...]) -> Line:
    if site.arguments.get("through") != "container":
        return Line(site, order, tuple(range(len(order))), len(order))
    turns = _numbers(site, "place")
    # Those that the program did not come to follow the last that it did.
    turns += tuple(range(turns[-1] + 1, turns[-1] + 1 + len(order) - len(turns)))
    return Line(site, order, turns, max(_number(site, "turns") or 0, turns[-1] + 1))


def _alike(blocks: list[Block]) -> list[Block]:
    """Blocks that keep nearly the same do the same work: the median of their figures stands for each.

    Else noise would decide between them, and a plan be a scatter of numbers.
    """
    found = []
    for block in blocks:
        like = [other for other in blocks if abs(other.kept_bytes - block.kept_bytes) <= _NEAR * block.kept_bytes]
        kept, took = (sorted(getattr(one, name) for one in like) for name in ("kept_bytes", "recompute_ns"))
        middle = (len(like) - 1) // 2
        found.append(replace(block, kept_bytes=kept[middle], recompute_ns=took[middle]))
    return found


def _undo_recomputation(chain: Chain, sizes: Mapping[int, int]) -> Chain:
    """The chain with the recorded recomputations undone: what each of these blocks took when it ran again is kept."""
    blocks, more = [], 0
    for place, block in enumerate(chain.blocks):
        extra = max(0, sizes[place] - block.boundary_bytes) if place in sizes else 0
        blocks.append(
            replace(
                block,
                kept_bytes=block.kept_bytes + extra,
                forward_peak_bytes=block.forward_peak_bytes + more,
                backward_peak_bytes=block.backward_peak_bytes + more,
                again_peak_bytes=block.again_peak_bytes + more,
            )
        )
        more += extra
    turn, back = chain.turn_peak_bytes + more, chain.back_peak_bytes + more
    return replace(chain, blocks=tuple(blocks), turn_peak_bytes=turn, back_peak_bytes=back)


def _numbers(site: Site, name: str) -> tuple[int, ...]:
    text = site.arguments.get(name)
    return tuple(int(word) for word in text.split(",")) if isinstance(text, str) and text else ()


def _number(site: Site, name: str) -> int | None:
    value = site.arguments.get(name)
    return value if isinstance(value, int) else None
