"""What a capture left on disk, and the losses of a longer run, as the gates read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.collect.records import NUMBERS, STATE, TRAJECTORY, VALUES
from diagnose.trial.gates.captures import read_capture
from diagnose.trial.gates.trajectory import read_curve


def tensor(step: int, name: str, elements: int, **other: Any) -> dict[str, Any]:
    usual = {"step": step, "kind": "gradient", "name": name, "shape": [elements], "finite": True, "elements": elements}
    return {**usual, **other}


def rank(folder: Path, number: int, tensors: list[dict[str, Any]], values: list[float]) -> Path:
    path = folder / f"rank{number}"
    path.mkdir()
    (path / NUMBERS).write_text("".join(json.dumps(one) + "\n" for one in tensors))
    (path / VALUES).write_bytes(np.array(values, np.float64).tobytes())
    return path


def test_each_tensor_has_its_own_values_and_one_of_which_a_hash_was_kept_has_none(tmp_path: Path) -> None:
    rank(tmp_path, 0, [tensor(0, "a", 2), tensor(0, "b", 4, sha256="f00d"), tensor(1, "a", 1)], [1.0, 2.0, 3.0])
    found = read_capture(tmp_path)
    assert found is not None
    values = {key: value.tolist() for key, value in found.values.items()}
    assert values == {(0, 0, "gradient", "a"): [1.0, 2.0], (0, 1, "gradient", "a"): [3.0]}
    assert found.tensors[0, 0, "gradient", "b"].sha256 == "f00d"
    assert found.steps == 2
    assert found.has("gradient") and not found.has("loss")
    assert found.tensors[0, 1, "gradient", "a"].title == "gradient a of step 2"


def test_ranks_are_told_apart_and_have_the_states_that_they_left(tmp_path: Path) -> None:
    rank(tmp_path, 0, [tensor(0, "a", 1)], [1.0])
    other = rank(tmp_path, 11, [tensor(0, "a", 1)], [2.0])
    (other / STATE).write_text(json.dumps({"steps": [{"random": {}}], "nondeterministic": ["put_"]}))
    found = read_capture(tmp_path)
    assert found is not None
    assert {key[0]: value.tolist() for key, value in found.values.items()} == {0: [1.0], 11: [2.0]}
    assert found.states == {0: [], 11: [{"random": {}}]}
    assert found.nondeterministic == {"put_"}


def test_a_capture_that_did_not_come_to_its_end_is_none(tmp_path: Path) -> None:
    assert read_capture(tmp_path) is None
    rank(tmp_path, 0, [], [])
    assert read_capture(tmp_path) is None


def curve(folder: Path, number: int, losses: list[float | None], seeds_itself: bool = False) -> None:
    path = folder / f"rank{number}"
    path.mkdir()
    said = {"losses": losses, "memory_bytes": [7 + number], "optimizers": {"0": number}, "seeds_itself": seeds_itself}
    (path / TRAJECTORY).write_text(json.dumps(said))


def test_losses_are_averaged_over_ranks_as_far_as_all_of_them_came(tmp_path: Path) -> None:
    curve(tmp_path, 0, [4.0, 2.0, 1.0], seeds_itself=True)
    curve(tmp_path, 1, [2.0, 1.0])
    found = read_curve(tmp_path)
    assert found is not None
    assert found.losses.tolist() == [3.0, 1.5]
    assert (found.memory_bytes.tolist(), found.optimizers, found.seeds_itself) == ([7.0], {"0": 0}, True)


def test_a_step_without_a_loss_stays_one(tmp_path: Path) -> None:
    curve(tmp_path, 0, [4.0, None, 1.0])
    found = read_curve(tmp_path)
    assert found is not None
    assert np.isnan(found.losses).tolist() == [False, True, False]
    assert not found.seeds_itself


def test_without_any_losses_there_is_no_curve(tmp_path: Path) -> None:
    assert read_curve(tmp_path) is None
