"""Whether the diagnosis holds when the same runs are recorded in another way.

    python benchmarks/perturb.py OUT [--only NAME …] [--views stack bare] [--changes NAME …] [--part I/N]

OUT is what `accuracy.py record` left. Each profile is changed as benchmarks/perturbations.py says, and diagnosed again:
the first finding must stay what it was, or the rule must say that it cannot tell any more; and a healthy program must
get no finding of severity high or medium that it did not have. Printed is what did not hold, then the totals. Some of
that has a reason: an ailment of every fifth step is not in all recordings of one.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from accuracy_programs import SICKBAY, programs
from parts import add_part_option
from perturbations import PERTURBATIONS, Perturbation, Profile

from diagnose.engine import diagnose
from diagnose.model import Diagnosis, Severity
from diagnose.plugins import Catalogue, load_rules
from diagnose.trace.readers import open_traces

_WEIGHTY = (Severity.HIGH, Severity.MEDIUM)


@dataclass(frozen=True)
class Said:
    """The findings on a profile and on a changed copy."""

    recording: str
    change: str
    before: tuple[str, ...]
    """The rules of the findings as recorded: all, the first one first."""
    after: tuple[str, ...]
    weighty: tuple[str, ...]
    """High and medium findings on the changed copy, on a healthy program those that were not there before."""
    left_open: tuple[str, ...]
    """The rules that cannot tell of the changed copy."""
    ailment: str
    """Empty on a healthy program."""

    @property
    def holds(self) -> bool:
        """Whether the answer is still right, as wrong as it was, or known to be unknown."""
        if not self.ailment:
            return not self.weighty
        return self.after[:1] == self.before[:1] or (bool(self.before) and self.before[0] in self.left_open)


def main() -> int:
    """Change, diagnose, print; 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=Path, default=SICKBAY, help="another sick bay")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these programs alone")
    parser.add_argument("--views", nargs="+", default=["stack", "bare"], choices=("stack", "bare"))
    parser.add_argument("--changes", nargs="+", default=[], metavar="NAME", help="these changes alone")
    add_part_option(parser, "the programs")
    args = parser.parse_args()
    chosen = [change for change in PERTURBATIONS if not args.changes or change.name in args.changes]
    catalogue = load_rules()
    all_said = []
    for program in args.part.of(programs(args.only, args.programs)):
        for arm in program.arms:
            for view in args.views:
                ailment = program.ailment if arm == "train" else ""
                for said in answers(args.folder / program.name / arm / "plain" / view, ailment, chosen, catalogue):
                    all_said.append(said)
                    if not said.holds:
                        told = ", ".join(said.weighty if not ailment else said.after[:3]) or "nothing"
                        was = ", ".join(said.before[:2]) or "nothing"
                        print(f"{program.name}/{arm}/{view}: {said.change}: {told} (was {was})", flush=True)
    print()
    for change in chosen:
        mine = [said for said in all_said if said.change == change.name]
        print(f"{change.name:<22} {sum(said.holds for said in mine)} of {len(mine)} hold")
    return 0 if all(said.holds for said in all_said) else 1


def answers(folder: Path, ailment: str, changes: list[Perturbation], catalogue: Catalogue) -> Iterator[Said]:
    """Diagnose the profiles of one folder, changed in each way."""
    ranks = sorted(folder.glob("rank*.json.gz"))
    if not ranks:
        return
    profiles = [msgspec.json.decode(gzip.decompress(path.read_bytes())) for path in ranks]
    before = diagnosed(profiles, catalogue)
    for change in changes:
        after = diagnosed([change.change(profile) for profile in profiles], catalogue)
        new = tuple(rule for rule in _weighty(after) if rule not in _weighty(before))
        left_open = tuple(one.rule for one in after.cannot_tell)
        yield Said(str(folder), change.name, _rules(before), _rules(after), new, left_open, ailment)


def diagnosed(profiles: list[Profile], catalogue: Catalogue) -> Diagnosis:
    """The diagnosis of profiles, one a rank."""
    with tempfile.TemporaryDirectory() as folder:
        for rank, profile in enumerate(profiles):
            (Path(folder) / f"rank{rank}.json").write_bytes(msgspec.json.encode(profile))
        return diagnose(open_traces([Path(folder)]), catalogue)


def _rules(diagnosis: Diagnosis) -> tuple[str, ...]:
    return tuple(finding.rule for finding in diagnosis.findings)


def _weighty(diagnosis: Diagnosis) -> tuple[str, ...]:
    return tuple(finding.rule for finding in diagnosis.findings if finding.severity in _WEIGHTY)


if __name__ == "__main__":
    raise SystemExit(main())
