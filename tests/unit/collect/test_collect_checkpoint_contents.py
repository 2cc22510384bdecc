"""The names and shapes that a checkpoint of a program's models would contain."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from diagnose.collect.inside.modes.checkpoint_contents import checkpoints


def contents(*roots: nn.Module) -> list[dict[str, list[int]]] | None:
    return checkpoints(cast("Any", SimpleNamespace(roots=lambda: roots)))


class Task(nn.Module):
    """Owns what is trained, and perhaps the same under another name."""

    def __init__(self, evaluated: Callable[[nn.Module], nn.Module] | None = None) -> None:
        super().__init__()
        self.trained = nn.Linear(2, 3)
        if evaluated is not None:
            self.evaluated = evaluated(self.trained)


@pytest.mark.parametrize("evaluated", [lambda model: model, lambda model: torch.compile(model, backend="eager")])
def test_a_second_name_of_the_same_tensors_is_no_more_content(evaluated: Callable[[nn.Module], nn.Module]) -> None:
    expected = [{"trained.weight": [3, 2], "trained.bias": [3]}]
    assert contents(Task(evaluated)) == contents(Task()) == expected


def test_a_copy_is() -> None:
    (found,) = contents(Task(lambda _model: nn.Linear(2, 3))) or [{}]
    assert found.keys() == {"trained.weight", "trained.bias", "evaluated.weight", "evaluated.bias"}


def test_views_of_one_tensor_and_tensors_without_memory_are_each_content() -> None:
    model = nn.Module()
    whole = torch.zeros(4)
    for name, value in {"whole": whole, "front": whole[:2], "none": torch.empty(0), "nothing": torch.empty(0)}.items():
        model.register_buffer(name, value)
    model.register_buffer("unmade", torch.empty(3, device="meta"))
    assert contents(model) == [{"whole": [4], "front": [2], "none": [0], "nothing": [0], "unmade": [3]}]
