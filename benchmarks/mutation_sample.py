"""Measures how many small errors in the code that decides are noticed by the fast tests.

    python benchmarks/mutation_sample.py OUTPUT [--each 50] [--seed 1] [--jobs 2] [--only WORD]

A mutant is the project with one operator, number, condition or value changed, in the body of one function. A sample is
drawn from each of four parts. pytest collects the fast tests once, and a fork of that process notes which tests call
which function, in OUTPUT/calls.json, which a later run reads. Then a fork for each mutant exchanges the code of its
function and runs the tests that call it until one fails. Texts, defaults of arguments,
methods that use `super` and statements outside of functions are not changed. Processor time limits the tests, so that
a busy machine fails none. OUTPUT/mutants.json says of each mutant what is changed, and what noticed it.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import importlib
import json
import math
import os
import random
import resource
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from mutations import ROOT, Live, Mutant, exchange, live_functions, mutants_of, note_calls

PARTS = {
    "measure/steps": ["measure/steps/*.py"],
    "verdict": ["verdict.py", "trial/ab/sequential.py", "trial/ab/result.py"],
    "program": ["program/*.py"],
    "trial/gates": ["trial/gates/*.py"],
}
FILES = {
    part: [path for one in globs for path in sorted((ROOT / "diagnose").glob(one))] for part, globs in PARTS.items()
}
TESTS = ["-m", "not slow", "tests/unit", "tests/property", "tests/contracts"]
LIMIT = 20
"""Tests of a mutant may take this many times the processor time that they take without it, and a minute."""


def main() -> None:
    """Draw a sample, try its mutants, and print what share of each part is noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--each", type=int, default=50, help="mutants of each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="mutants of files and functions with this in their name")
    options = parser.parse_args()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    drawn = random.Random(options.seed)
    possible = {part: [mutant for path in paths for mutant in mutants_of(path)] for part, paths in FILES.items()}
    sample = {part: drawn.sample(mutants, min(options.each, len(mutants))) for part, mutants in possible.items()}
    mutants = [mutant for part in sample.values() for mutant in part if options.only in str(mutant.function)]
    sampler = Sampler(output, mutants, options.jobs)
    # What tests print goes to no file that forks would share.
    pytest.main(["-p", "no:cacheprovider", "--rootdir", str(ROOT), "--capture=sys", *TESTS], plugins=[sampler])
    records = [{**asdict(mutant), "noticed_by": by} for mutant, by in sampler.noticed_by.items()]
    (output / "mutants.json").write_text(json.dumps(records, indent=1))
    if not options.only:
        print(table({part: [sampler.noticed_by[mutant] for mutant in sample[part]] for part in sample}, possible))


def table(noticed_by: Mapping[str, Sequence[str]], possible: Mapping[str, Sequence[Mutant]]) -> str:
    """A line for each part, and one for all, in which a part counts by how many mutants are possible there."""
    lines, share, variance = [], 0.0, 0.0
    for part, outcomes in noticed_by.items():
        count, hits = len(outcomes), sum(map(bool, outcomes))
        weight = len(possible[part]) / sum(map(len, possible.values()))
        share += weight * hits / count
        variance += weight**2 * hits / count * (1 - hits / count) / count
        signals = sum(outcome.startswith("signal") for outcome in outcomes)
        low, high = interval(hits, count)
        lines.append(
            f"{part}: {hits} of {count} noticed, {signals} of them by a signal; 95 % interval {low:.0%} … {high:.0%}; "
            f"{len(possible[part])} are possible"
        )
    return "\n".join([*lines, f"all: {share:.1%} ± {1.96 * math.sqrt(variance):.1%}"])


def interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson)."""
    z = 1.96
    middle = (hits + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(hits * (count - hits) / count + z * z / 4)
    return middle - half, middle + half


class Sampler:
    """A plugin of pytest that runs the collected tests for each mutant, in a fork, instead of once."""

    def __init__(self, output: Path, mutants: Sequence[Mutant], jobs: int) -> None:
        self.output, self.mutants, self.jobs = output, mutants, jobs
        self.failed = ""
        self.noticed_by: dict[Mutant, str] = {}
        self._running: dict[int, Mutant] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name of the first test that fails."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Note which test calls what, unless that is known; then try each mutant."""
        for path in (path for paths in FILES.values() for path in paths):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        gc.unfreeze()
        live = live_functions(path for paths in FILES.values() for path in paths)
        gc.freeze()
        session.config.pluginmanager.unregister(name="terminalreporter")
        recorded = self.output / "calls.json"
        if not recorded.exists():
            os.waitpid(_forked(lambda: recorded.write_text(json.dumps(self._calls(session.items, live)))), 0)
        calls: dict[str, dict[str, float]] = json.loads(recorded.read_text())
        for mutant in self.mutants:
            self._wait(self.jobs - 1)
            items = _chosen(session.items, calls.get(str(mutant.function), {}), Path(mutant.function.path))
            limit_s = 60 + LIMIT * math.ceil(sum(calls["seconds"].get(item.nodeid, 0) for item in items))
            self._running[_forked(lambda: self._try(mutant, live, items, limit_s))] = mutant  # noqa: B023 - at once
        self._wait(0)
        return True

    def _wait(self, most: int) -> None:
        """Wait until no more than `most` mutants run, and note what became of the others."""
        while len(self._running) > most:
            child, status = os.wait()
            mutant = self._running.pop(child)
            told = self.output / f"{child}.txt"
            self.noticed_by[mutant] = told.read_text() if told.exists() else f"signal {status & 127}"
            told.unlink(missing_ok=True)
            print(
                f"{mutant.function}, line {mutant.line}: {mutant.change}: {self.noticed_by[mutant] or 'SURVIVES'}",
                flush=True,
            )

    def _try(self, mutant: Mutant, live: Live, items: Sequence[pytest.Item], limit_s: int) -> None:
        exchange(mutant, live)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        self._run(items)
        (self.output / f"{os.getpid()}.txt").write_text(self.failed)

    def _calls(self, items: Sequence[pytest.Item], live: Live) -> dict[str, dict[str, float]]:
        """Each function with the tests that call it, and `seconds` with what each test takes. All must pass."""
        called: set[str] = set()
        calls: dict[str, dict[str, float]] = {"seconds": {}}
        with tempfile.TemporaryFile(buffering=0) as noted:  # which forks of a test write to as well

            def note(function: str) -> None:
                if function not in called:
                    called.add(function)
                    os.write(noted.fileno(), f"{function}\n".encode())

            builtins.__called__ = note  # type: ignore[attr-defined]
            note_calls(live, "__called__")
            for number, item in enumerate(items):
                called.clear()
                noted.seek(0)
                noted.truncate()
                began = time.process_time()
                self._run(items[number : number + 1], items[number + 1 : number + 2])
                calls["seconds"][item.nodeid] = time.process_time() - began
                noted.seek(0)
                for function in set(noted.read().decode().splitlines()):
                    calls.setdefault(function, {})[item.nodeid] = calls["seconds"][item.nodeid]
        assert not self.failed, f"fails without any mutant: {self.failed}"
        return calls

    def _run(self, items: Sequence[pytest.Item], following: Sequence[pytest.Item] = ()) -> None:
        for item, after in zip(items, [*items[1:], *following, None], strict=False):
            if self.failed:
                return
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def _chosen(items: Sequence[pytest.Item], calling: Mapping[str, float], path: Path) -> list[pytest.Item]:
    """The tests that call a function, those in files of its name or package first."""

    def order(item: pytest.Item) -> tuple[bool, bool]:
        return path.stem not in item.path.name, path.parts[1] not in item.path.parts

    return sorted((item for item in items if item.nodeid in calling), key=order)


def _forked(work: Callable[[], object]) -> int:
    """Do the work in a fork, with a folder of its own for what tests write. Returns the fork's process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may return into pytest's own process
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


if __name__ == "__main__":
    main()
