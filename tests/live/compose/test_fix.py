"""`diagnose fix`, `apply` and `revert` on a real program with a real ailment, as a user would type them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from watching import LIGHT_TORCH, LIMIT_S

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
PROGRAM = f'''"""Trains on samples that each wait for a (simulated) disk."""

import os
import time

{LIGHT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
open(os.environ["LOSSES"], "a").close()


class Samples(Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.012)  # simulated: the time a disk takes
        generator = torch.Generator().manual_seed(index)
        row = torch.randn(65, generator=generator)
        return row[:64], row[64:]


def batch(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Samples(), batch_size=4, shuffle=True, collate_fn=batch)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
'''


def diagnose(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diagnose", *words]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "LOSSES": str(folder.with_name("losses.csv"))}
    # The folder for temporary files is not the one that tests have theirs in, of which losses are told.
    with tempfile.TemporaryDirectory() as apart:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            env={**environ, "TMPDIR": apart},
        )


def digests(folder: Path) -> dict[str, str]:
    """Every file of the user's with the hash of its bytes."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".diagnose" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], dict[str, Any]]:
    """A folder after `diagnose fix`: the folder, its digests before, and the answer."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(PROGRAM)
    before = digests(folder)
    # On a busy machine others are found worth a try too, and what is tried at once has one gate together.
    done = diagnose(folder, "fix", "--quick", "--json", "--only", "loader-workers", "train.py")
    assert done.returncode == 0, done.stderr
    return folder, before, json.loads(done.stdout)


def test_the_loader_is_found_at_its_line_and_at_the_line_that_waits(fixed: tuple[Path, dict[str, str], Any]) -> None:
    finding = fixed[2]["diagnosis"]["findings"][0]
    assert (finding["rule"], finding["severity"]) == ("input-bound", "high")
    code = " ".join(place["code"] for place in finding["where"])
    assert "DataLoader(Samples()" in code
    assert "time.sleep(0.012)" in code


def test_the_fix_has_a_verdict_with_an_interval_a_gate_and_a_prediction(
    fixed: tuple[Path, dict[str, str], Any],
) -> None:
    verdict = next(verdict for verdict in fixed[2]["verdicts"] if verdict["fixer"] == "loader-workers")
    # Workers that wait for a disk help on any machine: 4 samples of 12 ms each cannot be hidden by noise.
    assert verdict["decision"] == "kept", verdict["summary"]
    assert verdict["saving"]["low"] > 0.2
    assert verdict["gate"]["gate"] == "bitwise"
    assert verdict["gate"]["passed"] is True
    assert verdict["mechanism"]["moved"] is True
    assert verdict["predicted_ns"] > 20_000_000
    assert verdict["setting"]["num_workers"] >= 1


def test_fix_leaves_the_users_files_alone(fixed: tuple[Path, dict[str, str], Any]) -> None:
    folder, before, _ = fixed
    assert digests(folder) == before


def test_files_that_trials_write_by_absolute_path_are_warned_of(fixed: tuple[Path, dict[str, str], Any]) -> None:
    (told,) = (each for each in fixed[2]["warnings"] if "outside of their copies" in each)
    assert f"(1 in {fixed[0].parent})" in told


def test_copies_are_gone_in_the_end(fixed: tuple[Path, dict[str, str], Any]) -> None:
    (run,) = (fixed[0] / ".diagnose" / "runs").iterdir()
    assert (run / "journal.jsonl").exists()
    assert not (run / "trials").exists()


def test_apply_writes_the_diff_and_revert_restores_every_byte(fixed: tuple[Path, dict[str, str], Any]) -> None:
    folder, before, _ = fixed
    assert diagnose(folder, "apply").returncode == 0
    assert "num_workers=" in (folder / "train.py").read_text()
    assert diagnose(folder, "revert").returncode == 0
    assert digests(folder) == before


def test_apply_refuses_when_the_file_changed_since_the_run(fixed: tuple[Path, dict[str, str], Any]) -> None:
    folder, before, _ = fixed
    script = folder / "train.py"
    script.write_text(PROGRAM + "# touched\n")
    answer = diagnose(folder, "apply")
    assert answer.returncode == 2
    assert "train.py" in answer.stderr
    assert script.read_text().endswith("# touched\n")
    script.write_text(PROGRAM)
    assert digests(folder) == before
