"""Fuzzes the readers of all formats, guided by coverage, and the diagnosis of what they give.

    python benchmarks/fuzz.py --seconds 45 OUTPUT     # 45 s a format; needs Python 3.11 or 3.12 with atheris
    python benchmarks/fuzz.py --again OUTPUT/found    # run inputs that were found again

Whatever the input, and within 5 s and 1 GiB: traces or a DiagnoseError of one sentence; no rule that fails on the
traces; nothing executed, no program started, no network, nothing written outside the input's own folder, nothing left
behind; no control characters in what is printed. Each input that breaks this is written to OUTPUT/found with what it
did; equal places count once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz_mutations import LONGEST_BYTES, mutated
from fuzz_seeds import put, seeds

LONGEST_S = 5.0
MOST_BYTES = 1 << 30

_DANGEROUS = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect",
    "pickle.find_class", "sqlite3.enable_load_extension", "sqlite3.load_extension", "ctypes.dlopen", "code.__new__",
)  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Broken(Exception):
    """A promise was not kept."""


class Watch:
    """Notes what Python reports of dangerous acts while an input is opened."""

    def __init__(self) -> None:
        self.folder = ""
        self.acts: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event.startswith(_DANGEROUS):
            self.acts.append(f"{event} {args!r}"[:200])
        elif event in _CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & _WRITING):
            self._changed(event, args[0], args[-1])

    def _changed(self, event: str, path: object, folder: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        place = Path(os.fsdecode(path))
        if not place.is_absolute() and event in _CHANGES and isinstance(folder, int) and folder >= 0:
            place = Path(f"/proc/self/fd/{folder}").readlink() / place
        if not str(place).startswith(self.folder):
            self.acts.append(f"{event} {place}"[:200])


class Target:
    """Opens an input and diagnoses it; raises where a promise is not kept."""

    def __init__(self, root: Path) -> None:
        from diagnose.engine import diagnose
        from diagnose.errors import DiagnoseError
        from diagnose.plugins import load
        from diagnose.report.export import contract
        from diagnose.report.terminal import text
        from diagnose.trace.readers import open_traces

        self._refusal = DiagnoseError
        self._open, self._diagnose, self._catalogue = open_traces, diagnose, load()
        self._render = (lambda found: text.render(found, width=100, colour=False), contract.render)
        self._root = root
        tempfile.tempdir = str(root)  # what readers unpack goes there, too
        self._watch = Watch()
        self.runs = self.read = 0
        self.slowest_s = 0.0

    def __call__(self, data: bytes) -> None:
        self.runs += 1
        with tempfile.TemporaryDirectory(dir=self._root) as name:
            path = put(data, Path(name))
            before = sorted(self._root.rglob("*"))
            begin = time.perf_counter()
            self._watch.folder, self._watch.acts = str(self._root), []
            try:
                self._look(path)
            finally:
                self._watch.folder = ""
                took = time.perf_counter() - begin
                self.slowest_s = max(self.slowest_s, took)
            if took > LONGEST_S:
                raise Broken(f"took {took:.1f} s")
            if self._watch.acts:
                raise Broken(f"did {self._watch.acts[0]}")
            if before != sorted(self._root.rglob("*")):
                raise Broken("left a file behind")

    def _look(self, path: Path) -> None:
        try:
            traces = self._open([path])
        except self._refusal as error:
            message = str(error).removeprefix(str(path))
            if not message.strip() or "\n" in message or _CONTROLS.search(message):
                raise Broken(f"refused with {message!r}"[:300]) from error
            return
        self.read += 1
        found = self._diagnose(traces, self._catalogue)
        for warning in found.warnings:
            if "failed and was left out" in warning:
                raise Broken(re.sub(r"\d+", "N", warning))
        text, contract = (render(found) for render in self._render)
        if _CONTROLS.search(text):
            raise Broken("printed control characters")
        text.encode()
        json.loads(contract, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise Broken(f"{name} in JSON")


class Collected:
    """The failures found, one file for each place of the code."""

    def __init__(self, folder: Path, target: Target) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._target = folder, target
        self.places: dict[str, str] = {}

    def __call__(self, data: bytes) -> None:
        try:
            self._target(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            self._keep(data, error)

    def _keep(self, data: bytes, error: Exception) -> None:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "/diagnose/" in one.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "after"
        said = re.sub(r"\d+", "N", str(error))[:60] if isinstance(error, Broken) else ""
        place = f"{type(error).__name__} {where} {said}".strip()
        if place in self.places:
            return
        self.places[place] = str(error)[:300]
        name = re.sub(r"\W+", "-", place)[:80]
        (self._folder / name).write_bytes(data)
        (self._folder / f"{name}.txt").write_text("".join(traceback.format_exception(error))[-6000:])


def fuzz_one_format(name: str, seconds: int, output: Path, root: Path) -> None:
    """Fuzz in this process, which ends with it."""
    atheris: Any = importlib.import_module("atheris")  # no dependency of ours: whoever fuzzes installs it
    with atheris.instrument_imports(include=["diagnose.trace", "diagnose.measure", "diagnose.engine"]):
        target = Target(root)
        collected = Collected(output / "found", target)
    corpus = output / "corpus" / re.sub(r"\W+", "-", name)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[name]):
        collected(seed)  # what is imported late is imported now
        (corpus / f"seed{number}").write_bytes(seed)
    if target.read == 0:
        raise SystemExit(f"no seed of {name} is read")
    base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (base + MOST_BYTES, base + MOST_BYTES))
    begin = time.monotonic()

    def write_summary() -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        summary = {
            "format": name,
            "inputs": target.runs,
            "read": target.read,
            "seconds": round(time.monotonic() - begin, 1),
            "slowest_s": round(target.slowest_s, 3),
            "peak_mb": usage.ru_maxrss // 1024,
            "found": collected.places,
        }
        (output / f"{corpus.name}.json").write_text(json.dumps(summary, indent=1))

    def one(data: bytes) -> None:
        collected(data)
        if target.runs % 50 == 0 or collected.places:
            write_summary()

    options = [f"-max_total_time={seconds}", f"-max_len={LONGEST_BYTES}", "-rss_limit_mb=2048", "-timeout=60"]
    options += [f"-artifact_prefix={output / 'found'}/", "-print_final_stats=1", "-len_control=0"]
    arguments = [sys.argv[0], str(corpus), *options]
    atheris.Setup(arguments, one, custom_mutator=mutated)
    atheris.Fuzz()


def run_again(folder: Path, root: Path) -> int:
    """Run inputs that were found; how many still break."""
    target, broken = Target(root), 0
    for path in sorted(path for path in folder.iterdir() if path.suffix != ".txt"):
        try:
            target(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - it is shown
            broken += 1
            print(f"{path.name}: {type(error).__name__}: {error}"[:300])
    print(f"{broken} inputs still break")
    return min(broken, 1)


def main() -> int:
    """Exit code 1 where an input that was found again still breaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=45, help="for each format")
    parser.add_argument("--only", metavar="FORMAT", choices=list(seeds()), help="one format alone")
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)  # of a format's process
    parser.add_argument("--again", action="store_true", help="run the inputs in OUTPUT once and end")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    args = parser.parse_args()
    output = args.output.resolve()
    os.environ |= {"DIAGNOSE_CACHE": "off", "MALLOC_ARENA_MAX": "2", "PATH": "/nonexistent"}
    if args.only and args.root:
        fuzz_one_format(args.only, args.seconds, output, args.root)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        if args.again:
            return run_again(output, Path(name))
        fuzz_all([args.only] if args.only else list(seeds()), args.seconds, output, Path(name))
    return 0


def fuzz_all(names: Sequence[str], seconds: int, output: Path, root: Path) -> None:
    """A process for each format, one after another; a line of the table when each is done."""
    output.mkdir(parents=True, exist_ok=True)
    print("| format | inputs | of which read | seconds | slowest | peak memory | places that broke |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        slug = re.sub(r"\W+", "-", name)
        command = [
            sys.executable,
            __file__,
            "--only",
            name,
            "--seconds",
            str(seconds),
            "--root",
            str(root),
            str(output),
        ]
        with (output / f"{slug}.log").open("wb") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=seconds + 300)
        summary = output / f"{slug}.json"
        told = json.loads(summary.read_text()) if summary.exists() else {}
        ended = "" if done.returncode == 0 else f" (ended with {done.returncode})"
        print(
            f"| {name}{ended} | {told.get('inputs', 0):,} | {told.get('read', 0):,} | {told.get('seconds')} | "
            f"{told.get('slowest_s')} s | {told.get('peak_mb')} MB | {len(told.get('found', {}))} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
