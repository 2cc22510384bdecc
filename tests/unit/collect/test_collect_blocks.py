"""What the probe of blocks learns in the first steps, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diagnose.collect.inside.guard import failures
from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.blocks.block_probe import KIND, TIMES, Blocks, repeated
from diagnose.collect.inside.probes.blocks.saved_tensors import SavedTensors
from diagnose.memory import RecordedBlocks, read_blocks
from diagnose.model import Site

ORIGINAL = nn.Module.__call__
WIDTH, ROWS = 8, 4
ACTIVATION = WIDTH * ROWS * 4


class Block(nn.Module):
    """Keeps its input (for the product) and the activation's input."""

    def __init__(self, dies: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dies = dies
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.dies:
            raise torch.OutOfMemoryError("out of memory")
        out: Tensor = self.dropout(torch.tanh(self.linear(x)))
        return out


class Net(nn.Module):
    """A loop over a list of blocks, and a stack of others."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.stack = nn.Sequential(*(Block() for _ in range(2)))
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        out: Tensor = self.stack(x)
        return out


@pytest.fixture
def probe() -> Iterator[tuple[Blocks, Sites]]:
    sites = Sites()
    blocks = Blocks(sites)
    blocks.install(torch)
    yield blocks, sites
    blocks.stop()


def train(probe: tuple[Blocks, Sites], net: nn.Module, steps: int = TIMES + 1) -> list[dict[str, Any]]:
    """Steps of training with the probe; the sites that it leaves."""
    torch.manual_seed(0)
    for index in range(steps):
        net(torch.ones(ROWS, WIDTH)).sum().backward()
        probe[0].step_ended(index)
    probe[0].finish()
    lines = [json.loads(line) for _, text in probe[1].drain() for line in text.splitlines()]
    return [line for line in lines if line["kind"] == KIND]


def chain_of(found: list[dict[str, Any]]) -> RecordedBlocks:
    known = read_blocks([Site(**one) for one in found])
    assert known is not None
    return known


def test_the_lines_that_call_blocks_are_known_with_what_each_keeps(probe: tuple[Blocks, Sites]) -> None:
    found = train(probe, Net())
    assert [(one["arguments"]["name"], one["arguments"]["count"]) for one in found] == [("Block", 3), ("Block", 2)]
    assert [one["function"] for one in found] == ["Net.forward", "Net.forward"]
    assert [one["arguments"]["order"] for one in found] == ["0,1,2", "3,4"]
    assert [one["arguments"]["through"] for one in found] == ["loop", "container"]
    assert [one["arguments"]["place"] for one in found] == ["0,1,2", "0,1"]
    blocks = chain_of(found).chain.blocks
    # Its tanh and its dropout's mask, and its output; what goes in is the output of the block before.
    assert {block.boundary_bytes for block in blocks} == {ACTIVATION}
    assert all(2 * ACTIVATION < block.kept_bytes <= 3 * ACTIVATION for block in blocks)
    assert all(block.recompute_ns > 0 for block in blocks)


def test_calls_of_modules_are_as_they_were_after_the_first_steps(probe: tuple[Blocks, Sites]) -> None:
    assert nn.Module.__call__ is not ORIGINAL
    train(probe, Net())
    assert nn.Module.__call__ is ORIGINAL


def test_the_numbers_of_the_training_are_those_without_it() -> None:
    def losses(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        blocks = Blocks(Sites())
        if watched:
            blocks.install(torch)
        found = []
        for index in range(TIMES + 2):
            optimizer.zero_grad()
            loss = net(torch.ones(ROWS, WIDTH)).sum()
            loss.backward()
            optimizer.step()
            blocks.step_ended(index)
            found.append(loss.detach())
        return found

    assert all(map(torch.equal, losses(watched=True), losses(watched=False)))


def test_a_checkpointed_program_goes_on_computing_again(probe: tuple[Blocks, Sites]) -> None:
    found = train(probe, Net(again=True))
    assert chain_of(found).lines[0].order == (0, 1, 2)


class OnDevice(Blocks):
    """With an allocator that holds a megabyte more at each reading."""

    held = 0

    def _on_device(self) -> bool:
        return True

    def _capturing(self) -> bool:
        return False

    def _limit(self) -> int | None:
        return 1 << 40

    def _clock(self) -> int:
        return self._read()[0]

    def _read(self) -> tuple[int, int]:
        self.held += 1_000_000
        return self.held, self.held + 500_000


def test_a_recomputation_that_torch_ends_early_is_measured_too() -> None:
    sites = Sites()
    probe = OnDevice(sites)
    probe.install(torch)
    found = train((probe, sites), Net(again=True))
    (looped,) = [one for one in found if one["arguments"]["through"] == "loop"]
    # A reading when it begins, one when it ends, and an output that an early end leaves out.
    assert looped["arguments"]["again_bytes"] == ",".join([str(1_000_000 + ACTIVATION)] * 3)
    known = chain_of(found)
    assert known.again == (0, 1, 2)
    assert known.whole


def test_peaks_follow_the_order_of_the_step() -> None:
    sites = Sites()
    probe = OnDevice(sites)
    probe.install(torch)
    chain = chain_of(train((probe, sites), nn.Sequential(Net(), nn.Tanh()))).chain
    forward = [block.forward_peak_bytes for block in chain.blocks]
    backward = [block.backward_peak_bytes for block in chain.blocks]
    assert forward == sorted(forward)
    assert backward == sorted(backward, reverse=True)
    assert forward[-1] < chain.turn_peak_bytes < chain.back_peak_bytes < backward[-1]
    assert backward[0] == chain.rest_peak_bytes


def test_a_model_that_ends_in_a_block_has_one_peak_at_its_turn() -> None:
    sites = Sites()
    probe = OnDevice(sites)
    probe.install(torch)
    chain = chain_of(train((probe, sites), Net())).chain
    assert chain.blocks[-1].forward_peak_bytes < chain.turn_peak_bytes == chain.back_peak_bytes


def test_a_model_can_be_copied_and_pickled_while_it_is_measured(probe: tuple[Blocks, Sites]) -> None:
    net = Net()
    train(probe, net, steps=0)
    net(torch.ones(ROWS, WIDTH)).sum().backward()
    assert len(copy.deepcopy(net).blocks) == 3
    assert pickle.loads(pickle.dumps(net)).stack is not None


def test_accumulation_counts_one_pass(probe: tuple[Blocks, Sites]) -> None:
    net = Net()
    for index in range(TIMES + 1):
        for _ in range(3):
            net(torch.ones(ROWS, WIDTH)).sum().backward()
        probe[0].step_ended(index)
    lines = [json.loads(line) for _, text in probe[1].drain() for line in text.splitlines()]
    assert [one["arguments"]["count"] for one in lines] == [3, 2]


def test_evaluation_before_training_is_not_taken_for_it(probe: tuple[Blocks, Sites]) -> None:
    net = Net().eval()
    with torch.no_grad():
        net(torch.ones(ROWS, WIDTH))
    assert train(probe, net.train())[0]["arguments"]["count"] == 3


def test_a_program_that_dies_in_its_first_forward_pass_leaves_what_was_seen(probe: tuple[Blocks, Sites]) -> None:
    net = Net()
    net.blocks = nn.ModuleList(Block(dies=at == 2) for at in range(4))
    with pytest.raises(torch.OutOfMemoryError):
        net(torch.ones(ROWS, WIDTH))
    probe[0].finish()
    (site,) = [json.loads(line) for _, text in probe[1].drain() for line in text.splitlines()]
    assert site["arguments"]["count"] == 3
    assert len(site["arguments"]["kept_bytes"].split(",")) == 2
    assert site["arguments"]["blocks"] == 6
    assert chain_of([site]).lines[0].order == (0, 1, 2, 3, 4, 5)
    assert nn.Module.__call__ is ORIGINAL


def test_where_anything_is_compiled_calls_are_left_alone_at_once() -> None:
    sites = Sites()
    blocks = Blocks(sites)
    blocks.install(torch)
    sites.compiling = blocks.stop
    sites.compiling()
    assert nn.Module.__call__ is ORIGINAL
    blocks.finish()
    assert "".join(text for _, text in sites.drain()) == ""


class Unusual(nn.Module):
    """Does within a block what does not go together with counting what autograd saves."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(WIDTH) if kind == "lazy" else nn.Linear(WIDTH, WIDTH)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        if self.kind == "sparse":
            out = torch.sparse.mm(torch.eye(ROWS).to_sparse(), out)
        if self.kind == "transform":
            out = out + torch.func.grad(lambda y: (y * y).sum())(x)
        return x + out


@pytest.mark.parametrize("kind", ["lazy", "sparse", "transform"])
def test_blocks_whose_memory_cannot_be_counted_run_as_ever_and_nothing_is_told_of_them(
    probe: tuple[Blocks, Sites], kind: str
) -> None:
    losses = []
    for watched in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(*(Unusual(kind) for _ in range(2)))
        out = net(torch.ones(ROWS, WIDTH).requires_grad_())
        out.sum().backward()
        losses.append(float(out.detach().sum()))
        if watched:
            probe[0].step_ended(0)
            probe[0].finish()
    assert losses[0] == losses[1]
    assert not any(text for _, text in probe[1].drain())


def test_transforms_outside_of_blocks_find_torch_as_it_was(probe: tuple[Blocks, Sites]) -> None:
    switch_off = torch._C._autograd._saved_tensors_hooks_disable
    probe[0].stop()
    assert torch._C._autograd._saved_tensors_hooks_disable is not switch_off
    assert type(torch._C._autograd._saved_tensors_hooks_disable).__name__ == "builtin_function_or_method"


@pytest.mark.usefixtures("probe")
def test_a_program_without_steps_is_let_alone_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.collect.inside.probes.blocks.block_probe._MOST_CALLS", 10)
    net = Net()
    for _ in range(2):
        net(torch.ones(ROWS, WIDTH))
        assert nn.Module.__call__ is not ORIGINAL
    net(torch.ones(ROWS, WIDTH))
    assert nn.Module.__call__ is ORIGINAL


def test_blocks_are_repeated_parts_of_containers_and_none_lies_in_another() -> None:
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2)))
    root = nn.ModuleDict({"one": nn.ModuleList([inner, copy.deepcopy(inner)]), "plain": nn.Linear(2, 2)})
    assert [(place, block) for _, place, block in repeated(torch, root)] == list(enumerate(root["one"].children()))
    assert list(repeated(torch, nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)))) == []


def test_weights_without_a_storage_of_their_own_make_no_count_and_no_noise() -> None:
    """As parameters of `fully_shard` are, which stand for those that are gathered in a forward pass."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.eye(3).to_sparse())
    counted = SavedTensors(torch)
    try:
        assert counted._begin(module) is False
        assert not counted.whole
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    finally:
        counted.close()


def test_a_torch_that_does_not_tell_who_asked_for_saved_tensors_gets_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 2.6, with which a failure was noted at every forward pass."""
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    switch_off = torch._C._autograd._saved_tensors_hooks_disable
    counted, noted = SavedTensors(torch), list(failures)
    assert counted.begin(nn.Linear(2, 2)) is False
    counted.end()
    assert not counted.whole
    assert failures == noted
    assert torch._C._autograd._saved_tensors_hooks_disable is switch_off
