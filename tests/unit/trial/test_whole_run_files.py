"""What runs leave in files: saved values read without running them, and the order in which files come and go."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagnose.program.shorten import mark_loops
from diagnose.trial.whole_run.comparison import Original, _values, compare
from diagnose.trial.whole_run.figures import Text
from diagnose.trial.whole_run.file_history import differences, history
from diagnose.trial.whole_run.observation import Observation, listed
from diagnose.trial.whole_run.saved_objects import read_saved


class History:
    """An object of the program's own."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses


class Harmful:
    """Whatever unpickles it leaves a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def saved(path: Path, **values: Any) -> dict[str, Any]:
    torch.save(values, path)
    found = read_saved(path)
    assert found is not None
    return found


def test_tensors_numbers_and_objects_of_a_checkpoint_are_read(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    found = saved(
        tmp_path / "a.pt", w=weight, t=weight.t(), step=3, history=History([0.5]), bf=torch.ones(2).bfloat16()
    )
    assert np.array_equal(found["['w']"], weight.numpy())
    assert np.array_equal(found["['t']"], weight.t().numpy())
    assert found["['step']"] == 3
    assert found["['history'].state['losses'][0]"] == 0.5
    assert found["['bf']"].tolist() == [1.0, 1.0]


def test_a_models_and_an_optimizers_state_are_read(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    found = saved(tmp_path / "a.pt", model=model.state_dict(), optimizer=optimizer.state_dict())
    assert np.array_equal(found["['model']['weight']"], model.weight.detach().numpy())
    assert found["['optimizer']['state'][0]['exp_avg']"].shape == (2, 3)
    assert found["['optimizer']['param_groups'][0]['lr']"] == 1e-3


def test_the_form_of_a_saved_optimizers_kernels_is_no_difference_and_its_other_options_are(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    plain, fused, slower = (
        saved(tmp_path / "a.pt", optimizer=torch.optim.SGD(model.parameters(), lr=lr, fused=fused).state_dict())
        for lr, fused in ((0.1, None), (0.1, True), (0.01, None))
    )
    assert _values("a.pt", plain, fused, [plain, plain], 1e-7) == []
    assert _values("a.pt", plain, slower, [plain, plain], 1e-7) == [
        "a.pt: ['optimizer']['param_groups'][0]['lr'] differs"
    ]


def test_reading_runs_nothing_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"x": Harmful(str(tmp_path / "made"))}))
    assert read_saved(path) is not None
    assert not (tmp_path / "made").exists()


def test_pickles_and_arrays_are_read_and_text_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(collections.OrderedDict(a=[1, 2.5])))
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.txt").write_text("loss 0.5")
    (tmp_path / "b.pt").write_bytes(b"PK\x03\x04 torn")
    assert (read_saved(tmp_path / "a.pkl") or {})["['a'][1]"] == 2.5
    assert (read_saved(tmp_path / "a.npy") or {})[""].tolist() == [0, 1, 2]
    assert read_saved(tmp_path / "a.txt") is None
    assert read_saved(tmp_path / "b.pt") is None


WRITTEN = ["written", "a.pt", ""]
HISTORIES: dict[str, tuple[list[list[str]], list[list[str]], bool]] = {
    "written twice, or once": ([["made", "a.pt", ""], WRITTEN], [["made", "a.pt", ""]], True),
    "written beside its place first": (
        [["made", "a.pt", ""]],
        [["made", "a.tmp", ""], ["renamed", "a.tmp", "a.pt"]],
        True,
    ),
    "two files in the other order": (
        [["made", "a.pt", ""], ["made", "b.pt", ""]],
        [["made", "b.pt", ""], ["made", "a.pt", ""]],
        True,
    ),
    "read before it is written again": (
        [["made", "a.pt", ""], WRITTEN, ["read", "a.pt", ""]],
        [["made", "a.pt", ""], ["read", "a.pt", ""], WRITTEN],
        False,
    ),
    "removed before it is written": (
        [["made", "a.pt", ""], ["removed", "a.pt", ""]],
        [["removed", "a.pt", ""], ["made", "a.pt", ""]],
        False,
    ),
    "not there when the folder is listed": (
        [["made", "ck/a.pt", ""], ["listed", "ck", ""]],
        [["listed", "ck", ""], ["made", "ck/a.pt", ""]],
        False,
    ),
    "not there when a program is started": (
        [["made", "a.pt", ""], ["started", "", ""]],
        [["started", "", ""], ["made", "a.pt", ""]],
        False,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_files_come_and_go_as_the_program_could_see_it(name: str) -> None:
    before, after, same = HISTORIES[name]
    assert (differences(history(before), history(after), ()) == []) is same


def test_a_path_on_which_the_original_differs_from_itself_is_left_out() -> None:
    one, other = history([["made", "a", ""], ["read", "a", ""]]), history([["read", "a", ""], ["made", "a", ""]])
    assert differences(one, other, [other]) == []


MARKED = {
    "for step in range(9):\n    loss.backward()\n": "for step in diagnose_shortened(range(9)):\n    loss.backward()\n",
    "for e in tqdm(range(n), desc='é'):\n    train(e)\ndef train(e):\n    opt.step()\n": (
        "for e in tqdm(diagnose_shortened(range(n)), desc='é'):\n    train(e)\ndef train(e):\n    opt.step()\n"
    ),
    "# é\n\f\nfor a in range(2):\n    for b in range(\n        3\n    ):\n        opt.step()\n": (
        "# é\n\f\nfor a in diagnose_shortened(range(2)):\n"
        "    for b in diagnose_shortened(range(\n        3\n    )):\n        opt.step()\n"
    ),
    "class M:\n    def forward(self, x):\n        for i in range(3):\n            x = f(x)\n": None,
    "for x in loader:\n    loss.backward()\n": None,
    "while step < 9:\n    loss.backward()\n": None,
    "for step in range(9:\n": None,
}


@pytest.mark.parametrize("text", MARKED)
def test_loops_over_a_range_that_train_are_marked_where_they_stand(text: str) -> None:
    assert mark_loops({"train.py": text}).get("train.py") == MARKED[text]


def test_a_loop_trains_where_a_function_of_another_file_does() -> None:
    texts = {"main.py": "for e in range(3):\n    fit(e)\n", "engine.py": "def fit(e):\n    scaler.step(opt)\n"}
    assert mark_loops(texts) == {"main.py": "for e in diagnose_shortened(range(3)):\n    fit(e)\n"}


def run_with(folder: Path, *names: str) -> Observation:
    """A run that leaves empty files of these names."""
    files = dict.fromkeys(names, folder / "empty")
    (folder / "empty").touch()
    return Observation(
        folder, 0, Text(()), Text(()), files, records=[{"cut": False, "left": True, "files": [], "elsewhere": []}]
    )


def test_names_with_the_time_of_a_run_are_not_missed_in_a_run_that_was_left_early(tmp_path: Path) -> None:
    """The runs that show which names change from run to run went to their end: these are other names once more."""
    found = run_with(tmp_path, "runs/ppo-1__11/events.11.vm.901", "crash.pt")
    again = [run_with(tmp_path, "runs/ppo-1__22/events.22.vm.902", "crash.pt")]
    before = run_with(tmp_path, "runs/ppo-1__33/events.33.vm.903", "crash.pt")
    after = run_with(tmp_path, "runs/ppo-1__44/events.44.vm.904", "crash.pt")
    assert not compare(Original(before, found, again), after, losses=False).differs
    without = run_with(tmp_path, "runs/ppo-1__44/events.44.vm.904")
    assert compare(Original(before, found, again), without, losses=False).differs == ["does not leave crash.pt"]
    numbered = [run_with(tmp_path, *one.files, "runs/ppo-1__7/events.7.vm.7") for one in (before, found, *again)]
    compared = compare(Original(numbered[0], numbered[1], numbered[2:]), after, losses=False)
    assert compared.differs == ["does not leave runs/ppo-1__7/events.7.vm.7"]


def test_files_of_the_compiler_are_not_the_programs(tmp_path: Path) -> None:
    for name in ("torchinductor_user/headers/a.h", "out/losses.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    assert set(listed(tmp_path)) == {str(Path("out/losses.txt"))}
