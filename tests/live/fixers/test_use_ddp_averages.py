"""Only gradients that are averaged over all ranks are left to `DistributedDataParallel`, where weights begin alike."""

from __future__ import annotations

import pytest
from rank_programs import BY_HAND, HEAD, advised
from rewriting import FIXERS, rewritten

from diagnose.fixer import Advice, Edits, example_request


def test_gradients_that_are_looked_at_first_are_reduced_where_they_were() -> None:
    clipped = BY_HAND.replace(
        "    for parameter in", "    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    for parameter in"
    )
    assert "before it reduces them" in advised("use-ddp", clipped)
    helper = "def back(loss):\n    loss.backward()\n    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n\n\n"
    hidden = BY_HAND.replace("    loss.backward()", "    back(loss)").replace("net = nn.Seq", helper + "net = nn.Seq")
    assert "may look at the gradients" in advised("use-ddp", hidden)


FLATTENED = (
    HEAD
    + """
net = Net().cuda()
for x, y in loader:
    criterion(net(x), y).backward()
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    unflatten(flat / dist.get_world_size(), net)
    optimizer.step()
"""
)


def test_gradients_that_are_reduced_in_another_way_are_spoken_of() -> None:
    late = example_request("unoverlapped-gradients", FLATTENED)
    answer = FIXERS["use-ddp"].rewrite(late)
    line = FLATTENED[: FLATTENED.index("dist.all_reduce(flat)")].count("\n") + 1
    assert isinstance(answer, Advice)
    assert answer.text.startswith(f"train.py:{line} reduces gradients by hand")
    assert rewritten("use-ddp", FLATTENED) is None, "no finding speaks of it"
    sharded = FLATTENED.replace("net = Net().cuda()", "net = fully_shard(Net().cuda())")
    assert FIXERS["use-ddp"].rewrite(example_request("unoverlapped-gradients", sharded)) is None


COUNTED = """import torch
import torch.distributed as dist


def average(model, many):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= many


dist.init_process_group("nccl")
torch.manual_seed(0)
world = dist.get_world_size()
net = Net().cuda()
for x, y in loader:
    criterion(net(x), y).backward()
    average(net, world)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(net, world)", "(net, 4)"),
        ("(net, world)", "(net, world * 4)"),
        ("world = dist.get_world_size()", "world = dist.get_world_size() - 1"),
        ("world = dist.get_world_size()", "world = dist.get_world_size()\nworld = 4"),
        ("world = dist.get_world_size()", "world = dist.get_local_world_size()"),
        ("optimizer.zero_grad()\n", "optimizer.zero_grad()\naverage(other, 4)\n"),
        ("(model, many):\n", "(model, many):\n    many = 4\n"),
        ("(model, many):", "(model, _, many=4):"),
        ("p.grad /= many", "p.grad = p.grad / many / 2"),
        ("p.grad)\n", "p.grad, op=dist.ReduceOp.AVG)\n"),
    ],
)
def test_gradients_that_are_divided_by_another_number_are_not_left_to_the_wrapper(before: str, after: str) -> None:
    """Adam hardly tells gradients of another scale apart: no comparison of losses would."""
    assert before in COUNTED
    assert isinstance(FIXERS["use-ddp"].rewrite(example_request("unoverlapped-gradients", COUNTED)), Edits)
    changed = example_request("unoverlapped-gradients", COUNTED.replace(before, after))
    assert isinstance(FIXERS["use-ddp"].rewrite(changed), Advice)


@pytest.mark.parametrize("name", ["world", "job.many"])
@pytest.mark.parametrize(
    ("further", "known"),
    [
        ("", True),
        ("rank, {0} = dist.get_rank(), dist.get_world_size()", True),
        ("{0} *= 4", False),
        ("rank, {0} = info()", False),
        ("first, *{0}, last = 1, dist.get_world_size(), 2, 3", False),
        ("({0}, first), last = info()", False),
        ("{0}: int = 4", False),
        ("{0}: int = dist.get_world_size()", True),
        ("for {0} in range(4): pass", False),
        ("with info() as {0}: pass", False),
        ("{0} = 4", False),
    ],
)
def test_what_a_function_takes_from_outside_is_the_number_of_ranks_if_all_that_it_is_given_is(
    name: str, further: str, known: bool
) -> None:
    text = COUNTED.replace("(model, many)", "(model)").replace("/= many", f"/= {name}").replace("(net, world)", "(net)")
    given = f"{name} = dist.get_world_size()\n{further.format(name)}"
    answer = FIXERS["use-ddp"].rewrite(
        example_request("unoverlapped-gradients", text.replace("world = dist.get_world_size()", given))
    )
    assert isinstance(answer, Edits if known else Advice)


REDUCED = FIXERS["use-ddp"].examples[0].before


@pytest.mark.parametrize(
    ("seed", "edited"),
    [
        ("torch.manual_seed(0)", True),
        ("seed = 3\n    torch.manual_seed(seed)", True),
        ("torch.manual_seed(args.seed)", True),
        ("args.seed = args.seed + offset\n    torch.manual_seed(args.seed)", False),
        ("me = dist.get_rank()\n    offset = me\n    torch.manual_seed(1337 + offset)", False),
        ('here = int(os.environ["RANK"])\n    torch.manual_seed(here)', False),
        ("torch.manual_seed(gpu)", False),
    ],
)
def test_weights_begin_alike_where_the_seed_is_seen_to_be_the_same_on_all_ranks(seed: str, edited: bool) -> None:
    text = REDUCED.replace("def main():", "def main(gpu, args):").replace("torch.manual_seed(0)", seed)
    assert (rewritten("use-ddp", text) is not None) is edited


@pytest.mark.parametrize(
    ("size", "edited"),
    [
        ("dist.get_world_size()", True),
        ("float(args.world_size)", True),
        ("dist.get_world_size() * micro_steps", False),
        ("dist.get_world_size(group)", False),
    ],
)
def test_the_number_of_ranks_is_what_a_name_is_given_whatever_it_is_called(size: str, edited: bool) -> None:
    text = REDUCED.replace("size = float(dist.get_world_size())", f"world_size = {size}").replace(
        "/= size", "/= world_size"
    )
    assert (rewritten("use-ddp", text) is not None) is edited


@pytest.mark.parametrize("rate", ["0.1", "0.1 * (1 + me)"])
def test_a_rate_of_each_rank_is_known_by_where_it_comes_from(rate: str) -> None:
    before = FIXERS["drop-broadcast"].examples[0].before
    text = before.replace("    model = DDP", f"    me = dist.get_rank()\n    rate = {rate}\n    model = DDP").replace(
        "        optimizer.step", "        optimizer.param_groups[0]['lr'] = rate\n        optimizer.step"
    )
    assert (rewritten("drop-broadcast", text) is not None) is ("me" not in rate)


@pytest.mark.parametrize(
    ("made", "asked", "model"),
    [
        ("me = dist.get_rank()\n    first = me == 0", "first", "model.module"),
        ("loader = DataLoader(data, sampler=Sampler(data, rank=rank))", "len(loader) > 3", "model"),
    ],
)
def test_what_one_rank_does_alone_is_known_by_plain_values(made: str, asked: str, model: str) -> None:
    text = REDUCED.replace("    model = Net()", f"    {made}\n    model = Net()")
    text = text.replace(
        "        optimizer.step()", f"        optimizer.step()\n        if {asked}:\n            model(x)"
    )
    assert f"            {model}(x)\n" in (rewritten("use-ddp", text) or "")
