"""Which blocks to compute again: the plan is the cheapest there is, and holds what it says."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from diagnose.memory import (
    Block,
    Chain,
    cheapest_plan,
    leanest_plan,
    plans,
    read_blocks,
)
from diagnose.model import Site

MB = 1_000_000


def uniform(count: int, kept: int = 100 * MB, boundary: int = 10 * MB, base: int = 500 * MB) -> Chain:
    """Blocks that are alike; a third of a block's memory more while one is at work, the loss takes one block's."""
    blocks = tuple(
        Block(kept, boundary, 1_000_000, base + (at + 1) * kept, base + (at + 1) * kept + kept // 3)
        for at in range(count)
    )
    return Chain(blocks, base + (count + 1) * kept, base)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Any few blocks, with peaks that are not those of any allocator."""
    size = st.integers(0, 50)
    blocks = draw(st.lists(st.builds(Block, size, size, size, size, size, size), max_size=7))
    return Chain(tuple(blocks), draw(st.integers(0, 300)), draw(st.integers(0, 30)), draw(st.integers(0, 300)))


def exhaustive(chain: Chain, budget_bytes: int) -> int | None:
    """The least recomputation that fits, by looking at every choice."""
    numbers = range(len(chain.blocks))
    costs = [
        chain.recompute_ns(again)
        for count in range(len(chain.blocks) + 1)
        for again in combinations(numbers, count)
        if chain.peak_bytes(again) <= budget_bytes
    ]
    return min(costs, default=None)


@given(chains(), st.integers(0, 200))
def test_no_other_choice_fits_and_costs_less(chain: Chain, budget_bytes: int) -> None:
    plan = cheapest_plan(chain, budget_bytes)
    assert (plan.recompute_ns if plan else None) == exhaustive(chain, budget_bytes)
    assert plan is None or chain.peak_bytes(plan.again) == plan.peak_bytes <= budget_bytes


@given(chains())
def test_the_leanest_plan_holds_no_more_than_any_other(chain: Chain) -> None:
    numbers = range(len(chain.blocks))
    least = min(chain.peak_bytes(again) for count in range(8) for again in combinations(numbers, count))
    assert leanest_plan(chain).peak_bytes == least


def test_what_fits_is_left_alone() -> None:
    chain = uniform(24)
    plan = cheapest_plan(chain, chain.peak_bytes())
    assert plan is not None and plan.again == () and plan.recompute_ns == 0


def test_of_blocks_that_are_alike_the_first_ones_are_computed_again() -> None:
    chain = uniform(24)
    plan = cheapest_plan(chain, chain.peak_bytes() * 6 // 10)
    assert plan is not None and plan.again == tuple(range(len(plan.again)))
    without_the_last = chain.peak_bytes(plan.again[:-1])
    assert plan.peak_bytes <= chain.peak_bytes() * 6 // 10 < without_the_last


def test_no_plan_goes_below_what_is_held_beside_the_blocks() -> None:
    assert cheapest_plan(uniform(24), 400 * MB) is None


def test_a_block_computed_again_needs_room_at_its_own_backward_pass() -> None:
    # The last block is by far the largest: to compute it again does not help in its own backward pass.
    blocks = (Block(10, 1, 1, 10, 10), Block(90, 1, 1, 100, 130))
    assert Chain(blocks, 100).peak_bytes({1}) == 130
    plan = cheapest_plan(Chain(blocks, 100), 125)
    assert plan is not None and plan.again == (0,)


def test_what_a_forward_pass_takes_for_a_while_comes_again_with_the_second() -> None:
    block = Block(100, 10, 1, 200, 150, again_peak_bytes=190)
    assert Chain((block,), turn_peak_bytes=100).peak_bytes({0}) == 190


def test_what_the_allocator_cannot_give_back_is_no_room_for_tensors() -> None:
    told: dict[str, int | str | None] = {"limit_bytes": 320, "again_peak_bytes": "0,0", "forward_ns": "6000,6000"}
    plain, fragmented = (read_blocks([site(arguments=told | {"fragment_bytes": size})]) for size in (0, 115))
    assert plain is not None and fragmented is not None
    assert [len(plan) for plan in plans(plain, 320)] == [1, 2]
    assert [len(plan) for plan in plans(fragmented, 320)] == [2]


def test_copies_of_weights_that_autocast_makes_stay_to_the_end_of_the_forward_pass() -> None:
    block = Block(100, 10, 1, 90, 90, cast_bytes=30)
    assert Chain((block,), turn_peak_bytes=150).peak_bytes({0}) == 150 - 60


def test_a_hundred_blocks_of_all_sizes_still_have_a_plan_that_fits() -> None:
    blocks = tuple(Block(1000 + 37 * at % 501, 10, 1000 + 91 * at % 777, 0, 0) for at in range(100))
    chain = Chain(blocks, sum(block.kept_bytes for block in blocks))
    budget_bytes = chain.turn_peak_bytes // 2
    plan = cheapest_plan(chain, budget_bytes)
    assert plan is not None and plan.peak_bytes <= budget_bytes
    # Fractions of blocks would cost no more than this.
    dearest = sorted(blocks, key=lambda block: block.recompute_ns / block.saved_bytes)
    saved = cost = 0
    for block in dearest:
        if chain.turn_peak_bytes - saved <= budget_bytes:
            break
        saved, cost = saved + block.saved_bytes, cost + block.recompute_ns
    assert plan.recompute_ns <= 1.02 * cost


def site(line: int = 12, arguments: Mapping[str, int | str | None] | None = None) -> Site:
    """What a line that calls two blocks leaves."""
    told: dict[str, int | str | None] = {
        "name": "Block",
        "count": 2,
        "order": "0,1",
        "kept_bytes": "100,100",
        "boundary_bytes": "10,10",
        "cast_bytes": "0,0",
        "forward_ns": "5000,3000",
        "forward_peak_bytes": "160,260",
        "backward_peak_bytes": "180,280",
        "turn_peak_bytes": 300,
        "back_peak_bytes": 290,
        "rest_peak_bytes": 90,
        "limit_bytes": 1000,
    }
    return Site("blocks", "train.py", line, "Net.forward", {**told, **(arguments or {})})


def test_a_recorded_chain_has_the_peaks_of_the_run() -> None:
    known = read_blocks([site()])
    assert known is not None and known.whole and known.limit_bytes == 1000
    assert [block.saved_bytes for block in known.chain.blocks] == [90, 90]
    assert known.chain.peak_bytes() == 300
    assert {block.recompute_ns for block in known.chain.blocks} == {3000}, "alike: one time for both"


def test_lines_share_one_chain_and_each_gets_its_turns() -> None:
    known = read_blocks([site(20, {"order": "2,3"}), site(12)])
    assert known is not None and len(known.chain.blocks) == 4
    second = next(line for line in known.lines if line.site.line == 20)
    assert known.of_line(second, {1, 3}) == (1,)


def test_blocks_after_the_one_in_which_memory_ran_out_are_taken_to_be_alike() -> None:
    died: dict[str, int | str | None] = dict.fromkeys(("kept_bytes", "forward_peak_bytes"), "100")
    died |= {"boundary_bytes": "10", "cast_bytes": "0", "forward_ns": "-1,-1", "backward_peak_bytes": "-1,-1"}
    known = read_blocks([site(arguments={**died, "turn_peak_bytes": None, "rest_peak_bytes": None})])
    assert known is not None and not known.whole
    assert [block.kept_bytes for block in known.chain.blocks] == [100, 100]


def test_a_chain_that_is_computed_again_already_is_told_as_if_it_were_not() -> None:
    known = read_blocks([site(arguments={"kept_bytes": "10,10", "again_bytes": "100,100", "again_ns": "2000,2000"})])
    assert known is not None and known.again == (0, 1)
    assert [block.kept_bytes for block in known.chain.blocks] == [100, 100]
    assert known.chain.peak_bytes((0, 1)) == 300
    assert known.chain.peak_bytes() == 480


def test_without_a_whole_chain_nothing_is_known() -> None:
    assert read_blocks([]) is None
    assert read_blocks([site(arguments={"order": "1,2"})]) is None
    assert read_blocks([site(arguments={"kept_bytes": ""})]) is None
