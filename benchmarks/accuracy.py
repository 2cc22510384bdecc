"""Measures how often the diagnosis of the sick bay's programs is right.

    python benchmarks/accuracy.py record OUT [--only NAME …] [--part I/N] [--device cuda|cpu] [--ranks N]
    python benchmarks/accuracy.py score OUT [--only NAME …] [--without NAME …] [--json | --markdown]
    python benchmarks/accuracy.py pack OUT FOLDER        # in few small files, on the machine with the device
    python benchmarks/accuracy.py unpack FOLDER OUT      # beside what is there, on the one without

`record` runs both arms of every program, once under `diagnose run` and once under profilers as people use them; a call
that is cut off goes on where it stopped. `score` diagnoses what is there, whatever the rules say today, and needs no
device. With `--device cpu` the programs whose ailment shows on a CPU run in their tiny size.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accuracy_markdown import markdown
from accuracy_pack import pack, unpack
from accuracy_programs import SICKBAY, Program, programs
from accuracy_record import CaptureRunner
from accuracy_score import Answer, score, table
from parts import add_part_option


def main() -> int:
    """Record or score; 1 where something could not be recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "score", "pack", "unpack"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path, nargs="?", help="of pack and unpack")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these programs alone")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="not these, as they changed since")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_part_option(parser, "the programs to record")
    parser.add_argument("--ranks", type=int, default=1, help="record the programs that need this many devices")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after so long")
    parser.add_argument("--lanes", type=int, default=3, help="programs per device: one runs, the others get ready")
    parser.add_argument("--programs", type=Path, default=SICKBAY, help="another sick bay")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--markdown", action="store_true", help="print them as the tables of benchmarks/RESULTS.md")
    args = parser.parse_args()
    if args.action in ("pack", "unpack") and args.target is None:
        parser.error(f"{args.action} needs a folder to write to")
    if args.action == "pack":
        for path in pack(args.folder, args.target):
            print(f"{path.stat().st_size / 1e6:5.1f} MB  {path}")
        return 0
    if args.action == "unpack":
        unpack(args.folder.glob("recorded-*"), args.target)
        return 0
    chosen = [program for program in programs(args.only, args.programs) if program.name not in args.without]
    if args.action == "score":
        print(told(score(args.folder, chosen), as_json=args.json, as_markdown=args.markdown))
        return 0
    fitting = args.part.of([program for program in chosen if fits(program, args.device, args.ranks)])
    return 0 if CaptureRunner(args.folder, args.device, args.lanes, args.seconds).record(fitting) else 1


def told(answers: Sequence[Answer], *, as_json: bool, as_markdown: bool) -> str:
    """The answers as text."""
    if as_json:
        return json.dumps([dataclasses.asdict(answer) for answer in answers], indent=1)
    return markdown(answers) if as_markdown else table(answers)


def fits(program: Program, device: str, ranks: int) -> bool:
    """Whether the program makes sense on so many devices of this kind."""
    return program.gpus == ranks and (device == "cuda" or program.device == "any")


if __name__ == "__main__":
    raise SystemExit(main())
