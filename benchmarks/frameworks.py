"""One program of each library that holds the training loop, taken to a verdict by `diagnose fix`.

    python benchmarks/frameworks.py --out OUT              # with the Python that has the libraries; some minutes each
    python benchmarks/frameworks.py --out OUT --tiny       # only what each fix would change: seconds

Programs of the tests (tests/programs) for Hugging Face's Trainer, Accelerate and Lightning, whose samples are made to
take 50 ms each here. Without workers, the training thread waits for every one of them: `loader-workers` must be kept,
where the library or the user sets workers, with the same numbers bit for bit. A library that is not installed is said
to be left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "programs"
SLOW = "    def __getitem__(self, index):\n"
CASES = {
    "transformers": ("hf_trainer.py", ("100000",), ()),
    "accelerate": ("accelerate_loop.py", ("--cpu", "--epochs", "1000"), ()),
    "lightning": ("lightning_fit.py", (), (("max_epochs=1,", "max_epochs=1000,"),)),
}
LIMIT_S = 900


def written(folder: Path, name: str, changes: Sequence[tuple[str, str]]) -> Path:
    """The program with samples that take their time."""
    text = (PROGRAMS / name).read_text(encoding="utf-8")
    assert SLOW in text, name
    text = text.replace(SLOW, SLOW + "        __import__('time').sleep(0.05)\n")
    for before, after in changes:
        assert before in text, (name, before)
        text = text.replace(before, after)
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text, encoding="utf-8")
    return folder


def fixed(folder: Path, words: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    """Run `diagnose fix` and return its JSON; its log is kept beside the program."""
    command = [sys.executable, "-m", "diagnose", "fix", "--json", "--only", "loader-workers", *options]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "talk.txt").open("w") as talk:
        done = subprocess.run(
            [*command, "train.py", *words],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=talk,
            text=True,
            timeout=LIMIT_S,
        )
    (folder / "fix.json").write_text(done.stdout)
    if done.returncode:
        return {"verdicts": [], "final": None, "failed": done.returncode}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(library: str, found: dict[str, Any]) -> str:
    """One line of the table."""
    verdict = next((each for each in found["verdicts"] if each["fixer"] == "loader-workers"), None)
    if verdict is None:
        return f"{library:<14} nothing was tried" + (f": exit code {found['failed']}" if "failed" in found else "")
    final, gate = found["final"], verdict.get("gate")
    steps = f"{final['original_ns'] / 1e6:.0f} → {final['patched_ns'] / 1e6:.0f} ms" if final else "–"
    numbers = ("same, " if gate["passed"] else "not the same, ") + gate["gate"] if gate else "–"
    setting = ", ".join(f"{name}={value}" for name, value in verdict["setting"].items())
    return f"{library:<14} {verdict['decision']:<12} {setting:<16} {steps:<18} {numbers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="8m", help="for each program")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    how = ["--dry-run"] if options.tiny else ["--quick", "--budget", options.budget]
    rows = []
    for library, (name, words, changes) in CASES.items():
        if find_spec(library) is None:
            rows.append(f"{library:<14} is not installed: left out")
            continue
        folder = options.out / library
        shutil.rmtree(folder, ignore_errors=True)
        rows.append(row(library, fixed(written(folder, name, changes), words, how)))
        print(rows[-1], file=sys.stderr)
    print("library        decision     setting          step               numbers")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
