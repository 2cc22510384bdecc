"""`diagnose apply`: write a patch into the user's files. With `revert`, the only command that does."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from diagnose.cli.streams import result, talk
from diagnose.errors import InputError, UsageError
from diagnose.program import patch
from diagnose.program.patch import Patch
from diagnose.session import RUNS

FOREIGN = RUNS.parent / "applied"
"""Where patches that come from a diff file are kept, so that they can be taken back."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "apply",
        help="write a measured patch into your files",
        description="Writes the patch of a run, or a unified diff, into your files: all of them or none. Refuses when "
        "a file changed since the patch was measured. `diagnose revert` restores the exact bytes.",
    )
    parser.add_argument("patch", metavar="RUN or DIFF", nargs="?", help="the newest run with a patch when left out")
    parser.add_argument("--dry-run", action="store_true", help="check that it fits and show the diff; write nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check, write, say what was written."""
    folder, change = _chosen(args.patch)
    if not change.changes:
        raise UsageError(f"{folder.name}: the patch changes nothing")
    if args.dry_run:
        patch.check(change)
    else:
        if not (folder / patch.MANIFEST).exists():
            keep(folder, change)
        patch.apply(change, folder)
    result(report(change, folder, written=not args.dry_run, as_json=args.json))
    if not args.dry_run:
        talk("diagnose: `diagnose revert` takes it back")
    return 0


def report(change: Patch, folder: Path, *, written: bool, as_json: bool, verb: str = "changed") -> str:
    """What happened, for people or for programs."""
    counts = {each.path: each.line_counts() for each in change.changes}
    if as_json:
        files = [{"path": path, "added": added, "removed": removed} for path, (added, removed) in counts.items()]
        content = {"action": verb, "written": written, "root": str(change.root), "from": str(folder), "files": files}
        return json.dumps(content, indent=2, ensure_ascii=False)
    if not written:
        return change.text
    return "\n".join(f"{verb} {path} (+{added} −{removed})" for path, (added, removed) in counts.items())


def run_folders() -> list[Path]:
    """All folders below the working directory that keep a patch, newest first."""
    found = [*RUNS.glob(f"*/{patch.MANIFEST}"), *FOREIGN.glob(f"*/{patch.MANIFEST}")]
    return [manifest.parent for manifest in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def run_folder(name: str) -> Path | None:
    """The run folder that a word of the command line means: a path, or a name below `.diagnose/runs`."""
    return next((folder for folder in (Path(name), RUNS / name) if folder.is_dir()), None)


def keep(folder: Path, change: Patch) -> None:
    """Keep a patch whose home is `.diagnose`, which git shall not see."""
    ignore = FOREIGN.parent / ".gitignore"
    if not ignore.exists():
        ignore.parent.mkdir(parents=True, exist_ok=True)
        ignore.write_text("*\n")
    patch.store(change, folder)


def _chosen(name: str | None) -> tuple[Path, Patch]:
    if name is None:
        runs = [folder for folder in run_folders() if folder.parent.name == RUNS.name]
        if not runs:
            raise UsageError("there is no run with a patch here; `diagnose fix SCRIPT` makes one")
        return runs[0], patch.load(runs[0])
    folder = run_folder(name)
    if folder is not None:
        return folder, patch.load(folder)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise InputError(name, f"no run and no diff ({error.strerror})") from error
    return FOREIGN / hashlib.sha256(data).hexdigest()[:12], _foreign(data, name)


def _foreign(data: bytes, name: str) -> Patch:
    """The patch of a diff file, in the working directory or else at the top of the work tree around it."""
    here = Path.cwd()
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    paths = [file.path for file in patch.parse_diff(data, name) if file.before is not None]
    root = here if all((here / path).exists() for path in paths) or not (top / (paths or [""])[0]).exists() else top
    return patch.from_diff(data, root, name)
