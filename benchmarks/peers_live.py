"""Compares traceml-ai's answers on live runs of the sick bay's programs with those of `diagnose run`.

    python benchmarks/peers_live.py OUT --traceml PYTHON [--only NAME …] [--steps N] [--device cpu|cuda]

PYTHON is an interpreter that has torch and traceml-ai 0.5.0. On a CPU the programs whose ailment shows there run in
their tiny size. Prints a table in Markdown, from OUT/answers.json; a call that is cut off goes on where it stopped.

Each program runs as it is under `traceml run`; with the two edits that traceml's manual asks for in a plain loop,
`traceml.init()` and `trace_step(model)` around the body (both arms); and as it is under `diagnose run` (both arms). How
an answer is judged is said at MEANS and in `judged`; severities below a warning, and ours below medium, accuse nobody.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accuracy_programs import Program, programs
from accuracy_record import ROOT, write_atomically

MEANS: Mapping[str, frozenset[str]] = {
    "INPUT_BOUND": frozenset({"input-bound"}),
    "H2D_BOUND": frozenset({"exposed-copies", "pageable-copies"}),
    # "Logging, checkpointing, validation, CPU stalls, or unobserved work".
    "RESIDUAL_HEAVY": frozenset({"python-stall", "gc-pause", "periodic-stall"}),
}
"""The rules of ours that a verdict of traceml-ai means."""
CLASSES = frozenset({"RESIDUAL_HEAVY"})
"""Verdicts that name a class of causes, not one of them."""
NO_CAUSE = frozenset({"COMPUTE_BOUND", "BALANCED", "NORMAL", "NO_CLEAR_PERFORMANCE_BOTTLENECK"})
NO_DATA = frozenset({"INSUFFICIENT_STEP_TIME_DATA", "NO_DATA", "WARMUP", "INCOMPLETE_DATA"})
WAYS = ("traceml, as it is", "traceml, edited", "diagnose")
_SECONDS = 180
_GRACE_S = 30


def main() -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--traceml", metavar="PYTHON", help="an interpreter that has traceml-ai 0.5.0")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    parser.add_argument("--steps", type=int, default=40, help="of a run, where the program does not ask for more")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    chosen = [
        program
        for program in programs(asked.only)
        if program.gpus == 1 and program.ailment and (asked.device == "cuda" or program.device == "any")
    ]
    path = asked.out / "answers.json"
    answers: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for program, arm, way in _wanted(chosen, bool(asked.traceml)):
        key = f"{program.name}/{arm}/{way}"
        if key not in answers:
            print(key, file=sys.stderr)
            answers[key] = _answer(program, arm, way, asked)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, answers)
    print("\n".join(table(chosen, answers)))
    return 0


def _wanted(chosen: Sequence[Program], has_traceml: bool) -> Iterator[tuple[Program, str, str]]:
    for program in chosen:
        for arm in program.arms:
            for way in WAYS:
                is_asked = way == "diagnose" or (has_traceml and (arm == "train" or way != "traceml, as it is"))
                if is_asked:
                    yield program, arm, way


def _answer(program: Program, arm: str, way: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The answer on one run; `failed` is the end of its output where there is none."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""} if asked.device == "cpu" else dict(os.environ)
    environment.update(program.environment.get(arm, {}))
    steps = max(asked.steps, program.run_steps)
    arguments = [*program.arguments, "--steps", str(steps), *(["--tiny"] if asked.device == "cpu" else [])]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for path in program.folder.glob("*.py"):
            shutil.copy(path, work)
        script = work / f"{arm}.py"
        if way == "diagnose":
            environment["PYTHONPATH"] = str(ROOT)
            command = [sys.executable, "-m", "diagnose", "run", "--json", script.name, *arguments]
        else:
            if way == "traceml, edited":
                script.write_text(instrumented(script.read_text()))
            tool = str(Path(asked.traceml).parent / "traceml")
            command = [tool, "run", script.name, "--run-name", "run"]
            command += ["--aggregator-port", str(_free_port()), "--args", *arguments]
        code, stdout, stderr = _finished(command, work, environment)
        if code is None:
            return {"failed": f"not done after {_SECONDS} s"}
        if code:
            return {"failed": (stderr or stdout or "in silence").strip().splitlines()[-1]}
        return _ours(stdout) if way == "diagnose" else _traceml(work / "logs" / "run")


def _finished(command: Sequence[str], work: Path, environment: Mapping[str, str]) -> tuple[int | None, str, str]:
    """The exit code (None: too late), stdout and stderr. What is late is interrupted, as it has children to end."""
    with (work / "stdout").open("w+") as stdout, (work / "stderr").open("w+") as stderr:
        child = subprocess.Popen(command, cwd=work, env=environment, stdout=stdout, stderr=stderr)
        try:
            code: int | None = child.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    return code, (work / "stdout").read_text(), (work / "stderr").read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def instrumented(source: str) -> str:
    """The script with traceml's two edits: `init` once, and `trace_step` around the body of the training loop.

    Raises ValueError where no loop holds a backward pass, or where an edit by lines would change a string.
    """
    tree = ast.parse(source)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While) and _is_backward_in(node)]
    if not loops:
        raise ValueError("no loop around a backward pass")
    loop = max(loops, key=lambda node: node.lineno)
    begin, end = loop.body[0].lineno, loop.body[-1].end_lineno or 0
    for node in ast.walk(loop):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
            raise ValueError("a string over several lines stands in the loop")
    lines = source.splitlines()
    margin = " " * loop.body[0].col_offset
    body = [f"    {line}" if line.strip() else line for line in lines[begin - 1 : end]]
    first = next(node.lineno for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign))
    head = ["import traceml_ai as traceml", 'traceml.init(mode="auto")', ""]
    before = [*lines[: first - 1], *head, *lines[first - 1 : begin - 1]]
    return "\n".join([*before, f"{margin}with traceml.trace_step(model):", *body, *lines[end:], ""])


def _is_backward_in(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(node))


def _ours(stdout: str) -> dict[str, Any]:
    findings = json.loads(stdout)["diagnosis"]["findings"]
    first = next(iter(findings), None)
    place = first["where"][0] if first and first["where"] else None
    return {
        "first": first and first["rule"],
        "severity": first and first["severity"],
        "line": place and place["line"],
        "share": first and first["share"],
    }


def _traceml(logs: Path) -> dict[str, Any]:
    summary = json.loads((logs / "final_summary.json").read_text())
    primary = summary["primary_diagnosis"]
    return {
        "first": primary["kind"],
        "severity": primary["severity"],
        "why": primary["summary"],
        "also": [one["kind"] for part in ("system", "process") for one in summary[part]["issues"]],
    }


# -- for people ---------------------------------------------------------------------------------------------------


def judged(answer: Mapping[str, Any] | None, program: Program, arm: str, way: str) -> str:
    """Grade an answer; on a healthy twin, any accusation is wrong."""
    if answer is None:
        return "–"
    if "failed" in answer:
        return f"failed ({answer['failed']})"
    kind = answer["first"]
    if kind is None:
        return "no bottleneck"
    said = f"`{kind}`, {answer['severity']}"
    if kind in NO_DATA:
        return f"no data ({said})"
    if kind in NO_CAUSE:
        return f"no cause ({said})"
    if arm == "healthy":
        return f"accused ({said})" if answer["severity"] not in ("info", "note", "low") else f"a note ({said})"
    if program.ailment not in MEANS.get(kind, {kind}):
        return f"another ({said})"
    named = "its class named" if kind in CLASSES else "named"
    if way == "diagnose" and program.code:
        said += f", line {answer['line']}" + ("" if answer["line"] in program.lines() else ", wrong")
    return f"{named} ({said})"


def table(chosen: Sequence[Program], answers: Mapping[str, Any]) -> Iterator[str]:
    """One row a program and arm."""
    yield f"| program | {' | '.join(WAYS)} |"
    yield f"|---|{'---|' * len(WAYS)}"
    for arm in ("train", "healthy"):
        for program in chosen:
            if arm in program.arms:
                cells = [judged(answers.get(f"{program.name}/{arm}/{way}"), program, arm, way) for way in WAYS]
                yield f"| `{program.name}`{'' if arm == 'train' else ', twin'} | {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
