"""Runs the texts of programs one after the other in one job of two ranks on the CPU, and hands back what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watching import LIGHT_TORCH, LIMIT_S

ROOT = Path(__file__).parents[2]

_HARNESS = f"""
import json, os
{LIGHT_TORCH}
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.init_process_group = lambda *_args, **_kwargs: None
_, programs, names, target = sys.argv
found = []
for text in json.load(open(programs)):
    scope = {{"__name__": "__main__"}}
    exec(compile(text, "train.py", "exec"), scope)
    found.append([scope[name] for name in names.split(",")])
json.dump(found, open(f"{{target}}.{{dist.get_rank()}}", "w"))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # all is written; see benchmarks/rank_ending.py
"""


def run_on_two_ranks(programs: Sequence[str], folder: Path, names: Sequence[str]) -> list[list[list[Any]]]:
    """Per rank and program, what it leaves in `names`."""
    (folder / "harness.py").write_text(_HARNESS)
    (folder / "programs.json").write_text(json.dumps(programs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [str(folder / "harness.py"), str(folder / "programs.json"), ",".join(names), str(folder / "numbers")]
    done = subprocess.run(
        [*command, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return [json.loads((folder / f"numbers.{rank}").read_text()) for rank in range(2)]
