"""Probes in their own process, piece by piece: what they answer, what they leave, and what they refuse."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch

from diagnose.collect.inside.experiments import (
    batch_sweep,
    cached_input,
    compile_modes,
    no_communication,
    no_sync,
    sequence_sweep,
)


class Standing:
    """Stands for the change that a probe makes."""

    def __init__(self, world_size: int = 1) -> None:
        self.steps = 0
        self.times = 0
        self.kept: list[str] = []
        self.reasons: list[str] = []
        self.hub = self
        self.world_size = world_size

    def leave(self, what: str) -> None:
        if what not in self.kept:
            self.kept.append(what)

    def refuse(self, reason: str) -> None:
        self.reasons.append(reason)


def answers(change: Standing, values: list[Any]) -> list[Any]:
    """What one place is answered that reads one value after the other, a step each, as if they were on a device."""
    places = no_sync.Places(change, waits=lambda _: True)  # type: ignore[arg-type]
    read = places.scalar(lambda tensor: tensor.item())
    found = []
    for value in values:
        found.append(read(torch.tensor(value)))
        change.steps += 1
    return found


def test_no_sync_answers_a_loss_with_the_last_one_that_was_read_in_the_first_steps() -> None:
    change = Standing()
    losses = [5.0, 4.5, 4.25, 4.125, 3.5, 3.25]
    assert answers(change, losses) == [5.0, 4.5, 4.25, 4.125, 4.125, 4.125]
    assert change.kept == []


@pytest.mark.parametrize("values", [[3, 5, 4, 3, 7, 9], [False, True, False, False, True, True]])
def test_no_sync_leaves_numbers_that_may_be_sizes_and_conditions_as_they_are(values: list[Any]) -> None:
    change = Standing()
    assert answers(change, values) == values
    assert len(change.kept) == 1
    assert "that change, read at" in change.kept[0]


def test_no_sync_answers_a_condition_that_never_changed() -> None:
    assert answers(Standing(), [False, False, False, False, True]) == [False] * 5


@pytest.mark.parametrize(
    ("dtype", "seen"), [(torch.int64, [[3, 1], [2, 2], [4, 0]]), (torch.float32, [[3.0, 1.0]] * 3)]
)
def test_no_sync_leaves_lengths_that_are_read_as_a_list_or_as_a_tensor(dtype: torch.dtype, seen: list[Any]) -> None:
    """Of losses the last answer is given again; of lengths, which decide what is computed, the true one."""
    change = Standing()
    places = no_sync.Places(change, waits=lambda _: True)  # type: ignore[arg-type]
    as_list, as_tensor = places.scalar(lambda tensor: tensor.tolist()), places.copy(torch.Tensor.cpu)
    lists, tensors = [], []
    for change.steps, values in zip((0, 1, no_sync.TRULY_STEPS), ([3, 1], [2, 2], [4, 0]), strict=True):
        given = torch.tensor(values, dtype=dtype) if dtype == torch.int64 else torch.tensor([3.0, 1.0])
        lists.append(as_list(given))
        tensors.append(as_tensor(given).tolist())
    assert lists == tensors == seen
    assert len(change.kept) == (2 if dtype == torch.int64 else 0)


def test_no_sync_keeps_a_copy_on_the_host_for_each_place_and_shape() -> None:
    change = Standing()
    places = no_sync.Places(change, waits=lambda _: True)  # type: ignore[arg-type]
    move = places.copy(torch.Tensor.to)
    change.steps = no_sync.TRULY_STEPS
    first = [move(torch.full((size,), 1.0), "cpu") for size in (2, 3)]
    assert [one.shape[0] for one in first] == [2, 3]
    assert move(torch.full((2,), 9.0), torch.float64).dtype == torch.float64  # no move to the host


def test_cached_input_gives_containers_of_their_own_with_the_same_tensors() -> None:
    tensor = torch.zeros(3)
    batch = {"x": tensor, "names": ["a"], "pair": (tensor, 1)}
    fresh = cached_input._fresh(batch)
    fresh.pop("x")
    fresh["names"].append("b")
    assert set(batch) == {"x", "names", "pair"}
    assert batch["names"] == ["a"]
    assert cached_input._fresh(batch)["x"] is tensor
    assert cached_input._versions(batch) == [0, 0]
    tensor.add_(1)
    assert cached_input._versions(batch) == [1, 1]


def test_no_communication_puts_a_ranks_own_part_where_others_would_arrive() -> None:
    out, own = torch.zeros(6), torch.arange(3.0)
    no_communication._gather_tensor(out, own)
    assert out.tolist() == [0, 1, 2, 0, 0, 0]
    no_communication._scatter_tensor(small := torch.zeros(2), out)
    assert small.tolist() == [0, 1]
    no_communication._gather_list(many := [torch.zeros(3), torch.zeros(3)], own)
    assert [one.tolist() for one in many] == [[0, 1, 2]] * 2


@pytest.mark.parametrize(("steps", "ranks", "calls"), [(0, 2, 1), (1, 2, 0), (1, 1, 1)])
def test_collectives_of_the_first_step_and_of_one_rank_are_carried_out(steps: int, ranks: int, calls: int) -> None:
    change, called = Standing(ranks), []
    change.steps = steps
    make = no_communication._instead(change, no_communication._nothing)  # type: ignore[arg-type]
    result = make(lambda *_args, **_kwargs: called.append(1))(torch.zeros(1), async_op=True)
    assert len(called) == calls
    assert calls or result.wait()


def test_ranks_that_hand_tensors_to_each_other_are_refused() -> None:
    change = Standing(2)
    no_communication._refused(change, "send")(lambda *_: None)(torch.zeros(1))  # type: ignore[arg-type]
    assert "hand tensors to each other (send)" in change.reasons[0]


def test_batch_sweep_repeats_or_cuts_what_has_samples_in_its_first_dimension() -> None:
    change = Standing()
    change.torch, change.setting = torch, {"factor": 2}  # type: ignore[attr-defined]
    batch = {"x": torch.arange(3), "scale": torch.tensor(2.0), "other": torch.zeros(5), "names": ["a", "b", "c"]}
    made = batch_sweep.resized(change, batch)  # type: ignore[arg-type]
    assert made["x"].tolist() == [0, 1, 2, 0, 1, 2]
    assert made["names"] == ["a", "b", "c", "a", "b", "c"]
    assert (made["scale"].dim(), len(made["other"])) == (0, 5)
    change.setting = {"factor": 0.25}  # type: ignore[attr-defined]
    assert batch_sweep.resized(change, (torch.arange(8), [torch.arange(8)]))[0].tolist() == [0, 1]  # type: ignore[arg-type]
    batch_sweep.resized(change, {"x": 3})  # type: ignore[arg-type]
    assert "no tensor of a batch has samples" in change.reasons[0]


class Encoding(UserDict[str, Any]):
    """Holds its tensors as the batches of a tokenizer do: it is a mapping, and no `dict`."""


@pytest.mark.parametrize(("factor", "ids"), [(0.5, [[0, 1], [4, 5]]), (2, [[0, 1, 2, 3] * 2, [4, 5, 6, 7] * 2])])
def test_sequence_sweep_cuts_or_repeats_what_is_as_long_as_the_tokens(factor: float, ids: list[list[int]]) -> None:
    change = Standing()
    change.torch, change.setting = torch, {"length": factor}  # type: ignore[attr-defined]
    batch = {
        "weight": torch.ones(4, 3),
        "ids": torch.arange(8).view(2, 4),
        "mask": torch.ones(2, 1, 4, 4, dtype=torch.bool),
        "scale": torch.tensor(2.0),
        "names": ["a", "b", "c", "d"],
    }
    made = sequence_sweep.resized(change, Encoding(batch))  # type: ignore[arg-type]
    assert made["ids"].tolist() == ids
    assert made["mask"].shape == (2, 1, 4 * factor, 4 * factor)
    assert (made["weight"].shape, made["scale"].dim(), made["names"]) == ((4, 3), 0, ["a", "b", "c", "d"])
    assert change.reasons == []


class OnDevice(torch.Tensor):
    """Takes indices on its own device only, as tensors on an accelerator do."""

    def index_select(self, place: int, index: torch.Tensor) -> torch.Tensor:
        assert index.device == self.device
        return super().index_select(place, index)


def test_sequence_sweep_cuts_a_batch_on_a_device() -> None:
    change = Standing()
    change.torch, change.setting = torch, {"length": 0.5}  # type: ignore[attr-defined]
    batch = torch.zeros(2, 4, dtype=torch.int64, device="meta").as_subclass(OnDevice)
    assert sequence_sweep.resized(change, batch).shape == (2, 2)  # type: ignore[arg-type]


def test_sequence_sweep_refuses_a_batch_without_tokens() -> None:
    change = Standing()
    # Labels in a column are no sequences of one.
    sequence_sweep.resized(change, (torch.zeros(2, 4), torch.arange(2), torch.arange(2).view(2, 1)))  # type: ignore[arg-type]
    assert "no tensor of a batch has whole numbers in two dimensions" in change.reasons[0]


def test_batch_sweep_resizes_a_batch_that_is_an_object_with_tensors() -> None:
    change = Standing()
    change.torch, change.setting = torch, {"factor": 2}  # type: ignore[attr-defined]
    made = batch_sweep.resized(change, Encoding({"ids": torch.arange(3)}))  # type: ignore[arg-type]
    assert made["ids"].tolist() == [0, 1, 2, 0, 1, 2]


def test_compile_modes_compiles_the_first_model_that_a_training_step_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    call = torch.nn.Module.__call__
    change = Standing()
    change.torch = torch  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))
    first = compile_modes._compiling_first(change, torch.nn.Module, call)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.nn.Module, "__call__", first)
    with torch.no_grad():
        model(torch.zeros(1, 2))
    torch.nn.ReLU()(torch.zeros(1))
    assert compiled == []
    model(torch.zeros(1, 2))
    assert compiled == [model]
    assert torch.nn.Module.__call__ is call


def test_compile_modes_changes_the_mode_of_the_programs_own_compiling() -> None:
    change, seen = Standing(), []
    change.setting = {"mode": "max-autotune"}  # type: ignore[attr-defined]
    compile_ = compile_modes._in_this_mode(change, lambda *_args, **kwargs: seen.append(kwargs))  # type: ignore[arg-type]
    compile_(None, mode="default", fullgraph=True)
    compile_(None, backend="eager")
    assert seen[0] == {"mode": "max-autotune", "fullgraph": True}
    assert "the backend eager, which has no modes" in change.reasons[0]
