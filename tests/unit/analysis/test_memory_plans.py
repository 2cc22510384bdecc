"""Which blocks to compute again: the plan is the cheapest there is, and holds what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from diagnose.memory import (
    Block,
    Chain,
    Split,
    cheapest_plan,
    cheapest_split,
    leanest_plan,
    plans,
    read_blocks,
    split_plans,
)
from diagnose.model import Site

MB = 1_000_000
OPERATORS = ("aten.addmm.default",)


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


@st.composite
def split_chains(draw: st.DrawFn) -> Chain:
    """The same with blocks that can keep results of operators; what is kept may be more than autograd keeps."""
    plain = draw(chains())
    size = st.integers(0, 50)
    ways = st.lists(st.builds(Split, st.just(OPERATORS), size, size, size), max_size=1).map(tuple)
    return replace(plain, blocks=tuple(replace(block, splits=draw(ways)) for block in plain.blocks[:5]))


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


@given(split_chains(), st.integers(0, 200))
def test_no_other_choice_among_parts_of_blocks_fits_and_costs_less(chain: Chain, budget_bytes: int) -> None:
    costs = []
    for ways in product((0, 1, 2), repeat=len(chain.blocks)):
        again = {number for number, way in enumerate(ways) if way}
        keeping = {number for number, way in enumerate(ways) if way == 2}
        possible = all(chain.blocks[number].splits for number in keeping)
        if possible and chain.peak_bytes(again, keeping, OPERATORS) <= budget_bytes:
            costs.append(chain.recompute_ns(again, keeping, OPERATORS))
    plan = cheapest_plan(chain, budget_bytes, OPERATORS)
    assert (plan.recompute_ns if plan else None) == min(costs, default=None)
    if plan is not None:
        given_back = (plan.again, plan.keeping, plan.operators)
        assert chain.peak_bytes(*given_back) == plan.peak_bytes <= budget_bytes


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


def operators(**columns: str | int) -> dict[str, int | str | None]:
    """A block of 100 bytes whose product takes half of its time, attention a third, a norm the rest; a step of four."""
    told: dict[str, int | str | None] = {"operators": "aten.addmm.default,aten.sdpa.default,aten.norm.default"}
    told |= {"operator_bytes": "30,10,50", "operator_kept_bytes": "20,10,50", "operator_ns": "300,200,100"}
    told |= {"operators_ns": 600, "operators_of": 0, "again_peak_bytes": "0,0", "forward_ns": "6000,6000"}
    return told | columns


def test_operators_that_take_long_for_what_they_hold_are_worth_keeping() -> None:
    known = read_blocks([site(arguments=operators())])
    assert known is not None
    attention, both = known.chain.blocks[1].splits  # the block like the one that was looked into
    assert attention == Split(("aten.sdpa.default",), 10, 4000)
    assert both == Split(("aten.addmm.default", "aten.sdpa.default"), 40, 1000, extra_bytes=10)


def test_large_results_that_stay_keep_pages_of_the_allocator_in_use() -> None:
    """14 of them at once did not run, on a device, with room for what they hold and some 130 MB beside."""
    kept, held, page = 980 << 20, 50 << 20, 20 << 20
    told = operators(operators="aten.sdpa.default", operator_bytes=str(held), operator_kept_bytes=str(held))
    told |= {"operator_ns": "300", "kept_bytes": f"{kept},{kept}", "boundary_bytes": "10,10"}
    told |= dict.fromkeys(("forward_peak_bytes", "backward_peak_bytes"), f"{kept},{2 * kept}")
    known = read_blocks([site(arguments=told | {"turn_peak_bytes": 3 * kept, "rest_peak_bytes": 0})])
    assert known is not None
    assert [split.torn_bytes for split in known.chain.blocks[1].splits] == [page]
    enough = known.chain.peak_bytes((0, 1), (0, 1), ("aten.sdpa.default",))
    roomy, tight = (cheapest_split(known.chain, enough + room) for room in (2 * page, 2 * page - 1))
    assert roomy is not None and roomy.keeping == (0, 1) and roomy.peak_bytes == enough
    assert tight is not None and tight.keeping == (0,)


def test_a_block_like_no_other_is_not_taken_to_be_like_the_one_that_was_looked_into() -> None:
    known = read_blocks([site(arguments=operators(kept_bytes="100,60"))])
    assert known is not None
    assert known.chain.blocks[0].splits and not known.chain.blocks[1].splits


def test_no_split_holds_as_much_as_the_block_itself() -> None:
    known = read_blocks([site(arguments=operators(operator_bytes="90,95,500"))])
    assert known is not None and not any(block.splits for block in known.chain.blocks)


def test_a_plan_in_parts_is_told_where_it_is_cheaper() -> None:
    known = read_blocks([site(arguments=operators(limit_bytes=250, fragment_bytes=0))])
    assert known is not None
    # 300 at the turn, 230 wanted: the first block whole takes 6000; its product and attention kept, 1000 for 50 bytes.
    (first, *_) = split_plans(known, known.limit_bytes)
    assert first == cheapest_split(known.chain, 230)
    whole = cheapest_plan(known.chain, 230)
    assert whole is not None and first.recompute_ns < whole.recompute_ns
    assert split_plans(known, None) == []


def test_what_the_allocator_cannot_give_back_is_no_room_for_tensors() -> None:
    told = operators(limit_bytes=320, operators="")
    plain, fragmented = (read_blocks([site(arguments={**told, "fragment_bytes": size})]) for size in (0, 115))
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
