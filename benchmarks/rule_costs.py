"""Times each rule in diagnosing a recording, and each measure that rules share.

    python benchmarks/rule_costs.py                       # a recording of 100 MB, made of a sample
    python benchmarks/rule_costs.py TRACE --limit 10

One process, CPU time, nothing kept from before: start-up with all imports, reading, then every measure that is kept for
all rules, then each rule on those, then settling their claims. Ends with 1 if one rule takes more than the limit, in
percent of the whole. Shares of CPU time hold on a machine that others use, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from diagnose import plugins
from diagnose.analysis.attribution import attribute
from diagnose.measure import Measures
from diagnose.rule import Claim
from diagnose.trace.readers import open_traces

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "sample_traces" / "h200_expert_gpt" / "rank0" / "trace.json.gz"
SHOWN_MS = 1.0
"""Measures that take less are not listed."""


class CostModel:
    """CPU time by what it went to."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Count what is done inside."""
        begun = time.process_time_ns()
        yield
        self.spent_ns[what] = self.spent_ns.get(what, 0) + time.process_time_ns() - begun


def main() -> int:
    """Print the table; 0 if every rule stays below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="a recording of one rank (default: 100 MB of a sample)")
    parser.add_argument("--megabytes", type=int, default=100, help="size of the recording that is made")
    parser.add_argument("--limit", type=float, default=10.0, help="percent of the whole that one rule may take")
    asked = parser.parse_args()
    os.environ["DIAGNOSE_CACHE"] = "off"
    if asked.trace is not None:
        return report(asked.trace, asked.limit)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        make: list[str | Path] = [sys.executable, ROOT / "benchmarks" / "make_trace.py", SAMPLE, path]
        subprocess.run([*make, "--megabytes", str(asked.megabytes)], check=True, stdout=subprocess.DEVNULL)
        return report(path, asked.limit)


def report(path: Path, limit: float) -> int:
    """Diagnose one recording piece by piece."""
    stages, shared, rules = CostModel(), CostModel(), CostModel()
    stages.spent_ns["start-up"] = time.process_time_ns()
    with stages.of("finding rules"):
        catalogue = plugins.load()
    with stages.of("reading"):
        trace = open_traces([path])[0]
    measures = Measures(trace)
    for name in [name for name, value in vars(Measures).items() if isinstance(value, cached_property)]:
        with shared.of(name):
            getattr(measures, name)
    with shared.of("replay"):
        _ = measures.replay.base_ns if measures.has_device and measures.step_count else 0
    claims = []
    for name in sorted(catalogue.rules):
        with rules.of(name):
            answers = list(catalogue.rules[name].check(measures))
        claims += [(catalogue.rules[name], answer) for answer in answers if isinstance(answer, Claim)]
    with stages.of("settling claims"):
        attribute(claims, measures)
    stages.spent_ns["measures"] = sum(shared.spent_ns.values())
    stages.spent_ns["rules"] = sum(rules.spent_ns.values())
    whole_ns = sum(stages.spent_ns.values())
    megabytes = path.stat().st_size / 1e6
    print(f"{path.name}: {megabytes:.0f} MB, {len(trace.device)} pieces of device work, {measures.step_count} steps")
    print(f"{'whole':32} {whole_ns / 1e6:8.1f} ms CPU\n")
    for table, least in ((stages, 0.0), (shared, SHOWN_MS), (rules, 0.0)):
        for name, spent_ns in sorted(table.spent_ns.items(), key=lambda entry: -entry[1]):
            if spent_ns >= least * 1e6:
                print(f"{name:32} {spent_ns / 1e6:8.1f} ms {spent_ns / whole_ns:6.1%}")
        print()
    above = [name for name, spent_ns in rules.spent_ns.items() if spent_ns > limit / 100 * whole_ns]
    for name in above:
        print(f"{name} takes more than {limit:g} % of the whole", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
