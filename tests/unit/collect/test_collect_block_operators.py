"""What the probe of blocks learns of the operators of one, and which of them can keep their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diagnose.collect.inside.guard import failures
from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.blocks.allocator_fragmentation import fragments
from diagnose.collect.inside.probes.blocks.block_operators import Operators
from diagnose.collect.inside.probes.blocks.block_probe import OPERATORS, Blocks

ROWS, WIDTH = 4, 8
ACTIVATION = ROWS * WIDTH * 4
PRODUCT = "aten.addmm.default"


class Block(nn.Module):
    """A product whose result nobody needs for the backward pass, one that is squared, and something between."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.between(self.up(x))).square()
        return out


class Net(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor] = torch.tanh, again: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(between) for _ in range(3))
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


def told_of(net: Net, watched: bool = True) -> tuple[dict[str, Any], list[Tensor]]:
    """What the first steps leave of the line that calls the blocks, and the losses."""
    sites = Sites()
    probe = Blocks(sites)
    if watched:
        probe.install(torch)
    torch.manual_seed(0)
    losses = []
    for index in range(OPERATORS + 1):
        loss = net(torch.ones(ROWS, WIDTH)).sum()
        loss.backward()
        losses.append(loss.detach())
        probe.step_ended(index)
    probe.finish()
    (line,) = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()] or [{"arguments": {}}]
    return line["arguments"], losses


def offered(told: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Bytes, and those of them that autograd keeps, by operator."""
    columns = [map(int, told[f"operator_{what}"].split(",")) for what in ("bytes", "kept_bytes")]
    return dict(zip(told["operators"].split(","), zip(*columns, strict=True), strict=True))


def test_results_are_counted_with_what_autograd_keeps_of_them() -> None:
    told, _ = told_of(Net())
    found = offered(told)
    # Two products: tanh keeps what it returns, not what it is given, and a square keeps what it is given.
    assert found[PRODUCT] == (2 * ACTIVATION, ACTIVATION)
    assert found["aten.tanh.default"] == (ACTIVATION, ACTIVATION)
    assert "aten.add.Tensor" not in found, "the block's own output stays in any case"
    assert "aten.t.default" not in found, "a view is no new memory"
    took = [int(word) for word in told["operator_ns"].split(",")]
    assert 0 < sum(took) <= told["operators_ns"]
    assert told["operators_of"] == 0


def drawing(x: Tensor) -> Tensor:
    dropped: Tensor = torch.ops.aten.native_dropout(x, 0.5, True)[0]
    return dropped


def writing(x: Tensor) -> Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    ("between", "gone"), [(drawing, "aten.native_dropout.default"), (writing, PRODUCT), (torch.relu_, PRODUCT)]
)
def test_what_draws_random_numbers_or_is_written_to_keeps_no_result(
    between: Callable[[Tensor], Tensor], gone: str
) -> None:
    told, _ = told_of(Net(between))
    assert told["operators"] and gone not in told["operators"].split(",")


def test_a_checkpointed_program_is_looked_into_as_well() -> None:
    told, _ = told_of(Net(again=True))
    assert offered(told)[PRODUCT] == (2 * ACTIVATION, 0), "what autograd would keep is not seen there"


@pytest.mark.parametrize("again", [False, True])
def test_the_numbers_are_those_of_a_program_that_is_not_looked_into(again: bool) -> None:
    losses = []
    for watched in (True, False):
        torch.manual_seed(1)
        net = Net(nn.Dropout(0.5), again)
        _, found = told_of(net, watched)
        losses.append([*found, *(one.grad for one in net.parameters())])
    assert all(map(torch.equal, *losses))


class Odd(Net):
    """With something sparse between, which has no memory that could be counted."""

    def __init__(self) -> None:
        super().__init__(lambda x: torch.sparse.mm(torch.eye(ROWS).to_sparse(), x))


def test_where_something_cannot_be_counted_nothing_is_told() -> None:
    before = list(failures)
    told, losses = told_of(Odd())
    assert "operators" not in told
    assert len(losses) == OPERATORS + 1
    assert failures == before


@pytest.mark.parametrize("autocast", [False, True])
def test_an_error_within_the_program_stays_the_programs(autocast: bool) -> None:
    looks = Operators(torch, lambda: 0, torch.default_generator)
    with (
        pytest.raises(RuntimeError, match="shape"),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        looks.watching(),
    ):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert looks.told() == {}


def test_an_operator_whose_kernel_counts_on_autocast_runs_as_it_does_alone() -> None:
    sparse, dense = torch.eye(ROWS).to_sparse(), torch.randn(ROWS, WIDTH)
    looks = Operators(torch, lambda: 0, torch.default_generator)
    with torch.autocast("cpu", torch.bfloat16):
        alone = torch.sparse.mm(sparse, dense.bfloat16())
        with looks.watching():
            found = torch.sparse.mm(sparse, dense.bfloat16())
    assert found.dtype == alone.dtype and torch.equal(found, alone)


def test_casts_are_not_offered_as_autocast_makes_them_once_or_more_often() -> None:
    block = Block()
    looks = Operators(torch, iter(range(1_000_000)).__next__, torch.default_generator)
    with torch.autocast("cpu", torch.bfloat16), looks.watching():
        out = block(torch.ones(ROWS, WIDTH))
    looks.ended(out, None)
    names = str(looks.told()["operators"]).split(",")
    assert PRODUCT in names and "aten._to_copy.default" not in names


def test_what_is_compiled_at_first_within_a_block_is_compiled() -> None:
    double = torch.compile(lambda x: x.sin() * 2, backend="eager", fullgraph=True)
    with Operators(torch, lambda: 0, torch.default_generator).watching():
        found = double(torch.ones(2))
    assert torch.equal(found, torch.ones(2).sin() * 2)


MIB = 1 << 20


def segment(*pieces: int, kind: str = "large", expands: bool = False) -> dict[str, Any]:
    """A segment of pieces in MiB; those below zero are free."""
    blocks = [{"size": abs(size) * MIB, "state": "inactive" if size < 0 else "active_allocated"} for size in pieces]
    total = MIB * sum(map(abs, pieces))
    return {"segment_type": kind, "is_expandable": expands, "total_size": total, "blocks": blocks}


@pytest.mark.parametrize(
    ("segments", "size"),
    [
        ([], 0),
        ([segment(-20)], 0),  # is given back as a whole
        ([segment(12, -8)], 8),
        ([segment(10, -30, kind="large", expands=True)], 10),  # the second page is given back
        ([segment(10, -30, 10, -10, expands=True)], 20),
        ([segment(15, -1, 4, -20, 20, expands=True)], 1),
        ([segment(1, -3, kind="small", expands=True), segment(2, -2)], 3),
    ],
)
def test_fragments_are_what_is_free_in_no_piece_that_could_be_given_back(
    segments: list[dict[str, Any]], size: int
) -> None:
    assert fragments(segments) == size * MIB
