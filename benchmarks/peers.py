"""Compares other tools' answers on the sick bay's recordings with those of `diagnose`.

    python benchmarks/peers.py OUT [--view bare|stack] [--gpu-idle PYTHON] [--hta PYTHON] [--only NAME …]

OUT is what `accuracy record` left; each PYTHON is an interpreter that has the tool (gpu-idle 0.1.0,
HolisticTraceAnalysis 0.5.0). Prints a table in Markdown. Single-GPU programs only: neither peer joins ranks of one job
into one answer.

How an answer is judged. A tool has to name the cause, in whatever words (MEANS): "named" if its first finding does,
"named, 2nd" further down, "another" if it only names other causes, "no bottleneck" if it says that there is none, and
"idle, cause unknown" if it says so. On a healthy program every named cause is false; "cause unknown" is not. HTA names
no causes at all: its numbers are shown, and nobody is judged by them. Of ours the first finding of any severity counts,
and on healthy programs the high and medium ones, as in `accuracy score`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accuracy_programs import Program, programs
from accuracy_score import VIEWS, Answer, score

MEANS: Mapping[str, frozenset[str]] = {
    "dataloader": frozenset({"input-bound"}),
    # "Kernels average … far too short": a larger batch, torch.compile or CUDA graphs.
    "smallbatch": frozenset({"small-batch", "launch-bound"}),
    # "… % of the step is host-to-device copying": pinned memory and non_blocking.
    "h2d_copy": frozenset({"exposed-copies", "pageable-copies"}),
}
"""The rules of ours that a cause of gpu-idle means."""
UNKNOWN = "unattributed"
_SECONDS = 300
_GPU_IDLE = "import json, sys, analyzer; print(json.dumps(analyzer.analyze(sys.argv[1])))"
_HTA = Path(__file__).resolve().parent / "peers_hta.py"


@dataclass(frozen=True)
class Heard:
    """The tools' answers on one program; None where a tool was not asked."""

    program: Program
    ours: Answer | None
    gpu_idle: Mapping[str, str | None]
    """By arm."""
    hta: Mapping[str, str | None]


def main() -> int:
    """Ask, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--view", choices=[name for name in VIEWS if name != "run"], default="bare")
    parser.add_argument("--gpu-idle", metavar="PYTHON", help="an interpreter that has gpu-idle 0.1.0")
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis 0.5.0")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    asked = parser.parse_args()
    chosen = [
        program
        for program in programs()
        if program.ranks == 1 and (not asked.only or program.name in asked.only) and (asked.out / program.name).exists()
    ]
    ours = {answer.program: answer for answer in score(asked.out, chosen) if answer.view == asked.view}
    heard = [_heard(program, ours.get(program.name), asked) for program in chosen]
    print("\n".join(table(heard)))
    return 0


def _heard(program: Program, ours: Answer | None, asked: argparse.Namespace) -> Heard:
    said: dict[str, dict[str, str | None]] = {"gpu-idle": {}, "hta": {}}
    for arm in program.arms:
        path = next((asked.out / program.name / arm / VIEWS[asked.view]).glob("*.gz"), None)
        if path is None:
            continue
        print(f"{program.name} {arm}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            if asked.gpu_idle:
                said["gpu-idle"][arm] = gpu_idle(asked.gpu_idle, path, Path(folder), program.ailment)
            if asked.hta:
                said["hta"][arm] = hta(asked.hta, path, Path(folder))
    return Heard(program, ours, said["gpu-idle"], said["hta"])


def gpu_idle(python: str, path: Path, folder: Path, ailment: str) -> str:
    """Its answer, judged. It reads no compressed files."""
    plain = folder / "trace.json"
    with gzip.open(path) as packed, plain.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    answer = _asked([python, "-c", _GPU_IDLE, str(plain)])
    if answer is None:
        return "failed"
    causes = [finding["cause"] for finding in answer["findings"]]
    busy = f"GPU busy {answer['measurements']['busy_pct']:.0f} %"
    return f"{judged(causes, ailment)} ({busy}{''.join(f', {cause}' for cause in causes if cause != UNKNOWN)})"


def judged(causes: Sequence[str], ailment: str) -> str:
    """Grade an answer, given its causes in order."""
    if not causes:
        return "no bottleneck"
    if causes == [UNKNOWN]:
        return "idle, cause unknown"
    place = next((at for at, cause in enumerate(causes) if ailment in MEANS.get(cause, ())), None)
    return "another" if place is None else "named" if place == 0 else "named, 2nd"


def hta(python: str, path: Path, folder: Path) -> str:
    """Its numbers in a few words."""
    copy = folder / "hta" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    answer = _asked([python, str(_HTA), str(copy)])
    if answer is None:
        return "failed"
    time = (
        f"its breakdown failed ({answer['time_failed']})"
        if "time_failed" in answer
        else f"compute {answer['compute']:.0f} %, other work {answer['non_compute']:.0f} %, idle {answer['idle']:.0f} %"
    )
    idle = (
        f"its idle breakdown failed ({answer['idle_failed']})"
        if "idle_failed" in answer
        else f"of idle: host {answer['host_wait']:.0f} %, between kernels {answer['kernel_wait']:.0f} %"
    )
    return f"{time}; {idle}"


def _asked(command: Sequence[str]) -> Any:
    """Return a tool's output, decoded from JSON; None where it failed or took too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return None


# -- for people ---------------------------------------------------------------------------------------------------


def table(heard: Sequence[Heard]) -> Iterator[str]:
    """One row a program, then the totals."""
    yield "| injected | ours, first finding | gpu-idle | HTA |"
    yield "|---|---|---|---|"
    for one in heard:
        if one.program.ailment:
            yield _row(one.program.name, one.ours, one.gpu_idle.get("train"), one.hta.get("train"))
    yield ""
    yield from _totals(heard)


def _row(name: str, ours: Answer | None, gpu_idle: str | None, hta: str | None) -> str:
    return f"| `{name}` | {_ours(ours)} | {gpu_idle or '–'} | {hta or '–'} |"


def _ours(answer: Answer | None) -> str:
    if answer is None:
        return "–"
    place = "named" if answer.is_hit else f"named, {answer.place}." if answer.place else "not named"
    return f"{place} (`{answer.first}`)" if answer.first else place


def _totals(heard: Sequence[Heard]) -> Iterator[str]:
    ailing = [one for one in heard if one.program.ailment]
    healthy = [one for one in heard if "healthy" in one.program.arms]
    hits = sum(one.ours is not None and one.ours.is_hit for one in ailing)
    false = sum(one.ours is not None and bool(one.ours.false) for one in healthy)
    yield f"ours: named first {hits} of {len(ailing)}; high or medium on healthy programs {false} of {len(healthy)}"
    verdicts = Counter((one.gpu_idle.get("train") or "not asked").split(" (")[0] for one in ailing)
    yield f"gpu-idle: {', '.join(f'{text} {count}' for text, count in verdicts.most_common())} of {len(ailing)}"
    verdicts = Counter((one.gpu_idle.get("healthy") or "not asked").split(" (")[0] for one in healthy)
    yield f"gpu-idle, healthy: {', '.join(f'{text} {count}' for text, count in verdicts.most_common())}"


if __name__ == "__main__":
    raise SystemExit(main())
