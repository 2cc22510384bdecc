"""How often the diagnosis is right, on the programs of the sick bay.

    python benchmarks/accuracy.py record OUT [--only NAME …] [--device cuda|cpu] [--ranks N]
    python benchmarks/accuracy.py score OUT [--only NAME …] [--json]

`record` runs both arms of every program, once under `diagnose run` and once under profilers as people use them; a call
that is cut off goes on where it stopped. `score` diagnoses what is there, whatever the rules say today, and needs no
device. With `--device cpu` the programs whose ailment shows on a CPU run in their tiny size.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accuracy_programs import SICKBAY, Program, programs
from accuracy_record import Recorder
from accuracy_score import score, table


def main() -> int:
    """Record or score; 1 where something could not be recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "score"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these programs alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=1, help="record the programs of this many processes")
    parser.add_argument("--lanes", type=int, default=3, help="programs per device: one runs, the others get ready")
    parser.add_argument("--programs", type=Path, default=SICKBAY, help="another sick bay")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    args = parser.parse_args()
    chosen = programs(args.only, args.programs)
    if args.action == "score":
        answers = score(args.out, chosen)
        print(json.dumps([dataclasses.asdict(answer) for answer in answers], indent=1) if args.json else table(answers))
        return 0
    fitting = [program for program in chosen if fits(program, args.device, args.ranks)]
    return 0 if Recorder(args.out, args.device, args.lanes).record(fitting) else 1


def fits(program: Program, device: str, ranks: int) -> bool:
    """Whether the program makes sense on this device with so many processes."""
    return program.ranks == ranks and (device == "cuda" or program.device == "any")


if __name__ == "__main__":
    raise SystemExit(main())
