"""The small errors that the mutation benchmark makes, and how a live function is given one."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import mutations  # noqa: E402
from mutation_sample import interval, table  # noqa: E402

SOURCE = '''
import functools

LIMIT = 3


@functools.cache
def least(values: tuple[int, ...], more: int = 2) -> int | None:
    """The least value, 1 more."""
    if values:
        found = min(values)
        return found + 1
    return None


class Pair:
    def __init__(self, left):
        self.left = left

    @property
    def is_small(self):
        return self.left < LIMIT and not self.left == 0
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    path = tmp_path / "small.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("small", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def mutants(module: ModuleType) -> dict[str, mutations.Mutant]:
    return {f"{one.line}: {one.change}": one for one in mutations.mutants_of(Path(str(module.__file__)))}


def test_one_operator_number_condition_or_value_of_a_function_is_changed_at_a_time(module: ModuleType) -> None:
    assert list(mutants(module)) == [
        "10: values → not values",
        "11: min(values) → None",
        "12: found + 1 → None",
        "12: found + 1 → found - 1",
        "12: 1 → 2",
        "18: left → None",
        "22: self.left < LIMIT and (not self.left == 0) → None",
        "22: self.left < LIMIT and (not self.left == 0) → self.left < LIMIT or not self.left == 0",
        "22: self.left < LIMIT → self.left <= LIMIT",
        "22: self.left == 0 → self.left != 0",
        "22: 0 → 1",
    ]


def test_a_live_function_computes_as_the_mutant_does(module: ModuleType) -> None:
    live = mutations.live_functions([Path(str(module.__file__))])
    assert (module.least((1, 2)), module.Pair(3).is_small) == (2, False)
    mutations.exchange(mutants(module)["12: found + 1 → found - 1"], live)
    mutations.exchange(mutants(module)["22: self.left < LIMIT → self.left <= LIMIT"], live)
    module.least.cache_clear()
    assert (module.least((1, 2)), module.Pair(3).is_small) == (0, True)


def test_each_call_of_a_live_function_is_noted(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(builtins, "__called__", called.append, raising=False)
    mutations.note_calls(mutations.live_functions([Path(str(module.__file__))]), "__called__")
    assert module.Pair(module.least((1,))).is_small
    assert called == ["small.py:7 least", "small.py:17 Pair.__init__", "small.py:20 Pair.is_small"]


def test_a_part_counts_by_how_many_mutants_are_possible_in_it() -> None:
    possible: dict[str, list[Any]] = {"large": [None] * 300, "small": [None] * 100}
    said = table({"large": ["a test"] * 9 + [""], "small": ["a test", "signal 24", "", ""]}, possible)
    assert "small: 2 of 4 noticed, 1 of them by a signal; 95 % interval 15% … 85%; 100 are possible" in said
    assert said.splitlines()[-1].startswith("all: 80.0% ± ")


def test_an_interval_of_a_share_stays_between_none_and_all() -> None:
    assert interval(50, 50) == pytest.approx((0.929, 1.0), abs=1e-3)
    assert interval(40, 50) == pytest.approx((0.670, 0.888), abs=1e-3)
