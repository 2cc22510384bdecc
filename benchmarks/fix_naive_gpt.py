"""`diagnose fix` on the naive GPT, from a slow program to a measured patch, checked from outside.

    python benchmarks/fix_naive_gpt.py OUTPUT_FOLDER [--steps N] [--budget 15m] [--quick] [-- PROGRAM ARGUMENTS]

Works on a copy in a temporary folder: runs the program as found, lets `diagnose fix` work, applies the patch, runs the
patched program, reverts, and checks that the bytes are the old ones. Speed is what the program itself prints
(tokens/s), with nothing of ours inside the process. Writes the run folder's journal, diagnosis, patch and a Markdown
table into OUTPUT_FOLDER, and prints the table last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "sickbay" / "naive_gpt" / "train.py"
_RATE = re.compile(r"([\d,]+) tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=120, help="steps of each plain run")
    parser.add_argument("--budget", default="15m")
    parser.add_argument("--quick", action="store_true", help="shorter trials that resolve less")
    parser.add_argument("program", nargs="*", help="arguments for the program")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        script = work / "train.py"
        shutil.copy(PROGRAM, script)
        before_bytes = script.read_bytes()
        before = plain_run(script, args.steps, args.program)
        started = time.monotonic()
        options = ["--plain", "--json", "--budget", args.budget, *(["--quick"] if args.quick else [])]
        fix = diagnose(["fix", *options, "train.py", *args.program], work)
        took_s = time.monotonic() - started
        (args.output / "fix.json").write_text(fix.stdout)
        untouched = digest(script.read_bytes()) == digest(before_bytes)
        after = None
        reverted = None
        if diagnose(["apply"], work).returncode == 0:
            after = plain_run(script, args.steps, args.program)
            diagnose(["revert"], work)
            reverted = script.read_bytes() == before_bytes
        keep_run_folder(work, args.output)

    table = render(json.loads(fix.stdout or "{}"), before, after, took_s, untouched, reverted)
    (args.output / "naive_gpt.md").write_text(table)
    sys.stdout.write(table)


def diagnose(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in `cwd`; its talk is shown as it comes."""
    command = [sys.executable, "-m", "diagnose", *words]
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)


def plain_run(script: Path, steps: int, arguments: list[str]) -> list[float]:
    """Tokens per second as the program prints them, without the first line (start-up)."""
    command = [sys.executable, script.name, "--steps", str(steps), *arguments]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True)
    rates = [float(rate.replace(",", "")) for rate in _RATE.findall(done.stdout)]
    return rates[1:]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keep_run_folder(work: Path, output: Path) -> None:
    runs = sorted((work / ".diagnose" / "runs").glob("*"))
    if not runs:
        return
    for name in ("journal.jsonl", "diagnosis.json", "patch.diff"):
        if (runs[-1] / name).exists():
            shutil.copy(runs[-1] / name, output / name)
    traces = sorted(runs[-1].glob("rank0/*"))
    kept = [path for path in traces if path.is_file() and path.stat().st_size < 8 << 20]
    if kept:
        rank = output / "rank0"
        shutil.make_archive(str(rank), "gztar", root_dir=runs[-1], base_dir="rank0")


def render(
    fix: dict[str, object],
    before: list[float],
    after: list[float] | None,
    took_s: float,
    untouched: bool,
    reverted: bool | None,
) -> str:
    lines = [f"Device: {device()}; Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}", ""]
    rows = fix.get("verdicts", [])
    assert isinstance(rows, list)
    lines += ["| fix | decision | saved per step, 95 % interval | predicted | gate |", "|---|---|---|---|---|"]
    for verdict in rows:
        saving = verdict.get("saving")
        interval = (
            f"{saving['estimate']:+.2%} [{saving['low']:+.2%}, {saving['high']:+.2%}]" if saving else "not measured"
        )
        predicted = verdict.get("predicted_ns")
        gate = verdict.get("gate") or {}
        lines.append(
            f"| {verdict['fixer']} {verdict.get('setting') or ''} | {verdict['decision']} | {interval} | "
            f"{'' if predicted is None else f'{predicted / 1e6:.1f} ms'} | {gate.get('detail', '')} |"
        )
    lines += ["", f"As found: {describe(before)}.", f"Patched, alone: {describe(after or [])}."]
    if after and before:
        lines.append(f"Ratio of medians: {statistics.median(after) / statistics.median(before):.3f}.")
    lines += [
        f"`diagnose fix` took {took_s:.0f} s. User's file untouched: {untouched}; reverted exactly: {reverted}.",
        "",
    ]
    return "\n".join(lines)


def describe(rates: list[float]) -> str:
    if not rates:
        return "not measured"
    low, high = min(rates), max(rates)
    return f"median {statistics.median(rates):,.0f} tokens/s, {low:,.0f} to {high:,.0f}, {len(rates)} readings"


def device() -> str:
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else platform.processor() or "CPU"
    return f"{name}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
