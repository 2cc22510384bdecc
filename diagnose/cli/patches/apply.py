"""`diagnose apply`: write a patch into the user's files. With `revert`, the only command that does."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path

from diagnose.cli.recordings.target import names_of_runs
from diagnose.cli.streams import result, talk
from diagnose.errors import InputError, PatchConflict, UsageError
from diagnose.program import patch
from diagnose.program.patch import Patch
from diagnose.session import JOURNAL, RUNS, latest

FOREIGN = RUNS.parent / "applied"
"""The folder in which patches that come from a diff file are kept, so that they can be taken back."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "apply",
        help="write a measured patch into your files",
        description="Writes the patch of a run, or a unified diff, into your files: all of them or none. Refuses when "
        "a file changed since the patch was measured. `diagnose revert` restores the exact bytes. Where a fix is a "
        "changed command line, it is printed for you to type.",
    )
    parser.add_argument("patch", metavar="RUN or DIFF", nargs="?", help="the newest run with a patch when left out")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--only", action="append", metavar="FIXER,…", help="of the kept fixes write these alone")
    some.add_argument("--without", action="append", metavar="FIXER,…", help="of the kept fixes write all but these")
    parser.add_argument("--fixers", type=Path, metavar="DIR", help="the folder of further fixers that the run had")
    parser.add_argument("--dry-run", action="store_true", help="check that it fits and show the diff; write nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check, write, say what was written."""
    folder, change = _chosen(args.patch)
    check(folder, change)
    if args.only or args.without:
        folder, change = _some(folder, change, args)
    if not args.dry_run:
        write(folder, change)
    result(report(change, folder, written=not args.dry_run, as_json=args.json))
    if not args.dry_run:
        for line in afterwards(folder, change):
            talk(line)
    return 0


def check(folder: Path, change: Patch) -> None:
    """Raise UsageError for a patch that changes nothing, and PatchConflict for one that cannot be written."""
    require_near(folder, change)
    if not change.changes and change.command is None:
        raise UsageError(f"{folder.name}: the patch changes nothing")
    try:
        patch.check(change)
    except PatchConflict as error:
        raise _explained(error, folder, change) from error


def write(folder: Path, change: Patch) -> None:
    """Write a patch that was checked, and keep it in `folder` so that it can be taken back."""
    if not (folder / patch.MANIFEST).exists():
        keep(folder, change)
    if change.changes:
        patch.apply(change, folder)


def afterwards(folder: Path, change: Patch) -> list[str]:
    """Return the notes and commands to print once a patch is written."""
    lines = []
    if change.command is not None:
        only = "" if change.changes else "no file changes; "
        lines.append(f"{only}start it with this command from now on: {folder / patch.COMMAND} keeps it")
    if change.changes:
        named_so = "" if folder.is_relative_to(RUNS.parent) else f" {shlex.quote(str(folder))}"
        lines.append(f"`diagnose revert{named_so}` takes it back")
    if (folder / JOURNAL).exists():
        newest = latest()
        which = "" if newest is not None and folder.samefile(newest) else f" {shlex.quote(str(folder))}"
        lines.append(f"`diagnose report{which} --format markdown` has the text for a pull request")
    return lines


def _some(run: Path, whole: Patch, args: argparse.Namespace) -> tuple[Path, Patch]:
    """The patch with some of its fixes, and the folder that is to keep it. Says that it is not what was measured."""
    from diagnose.cli.programs.fixer_selection import check_names, names_in
    from diagnose.compose.stack import stack_store  # brings LibCST and numpy along
    from diagnose.plugins import load

    kept = stack_store.names(run)
    named = names_in(args.only or args.without)
    check_names(named, kept, f"fix that {run.name} kept; it kept {', '.join(kept)}")
    stay = tuple(name for name in kept if (name in named) == bool(args.only))
    if not stay:
        raise UsageError("that leaves no fix to write")
    if stay == kept:
        return run, whole
    left_out = [name for name in kept if name not in stay]
    change = stack_store.leave_out(run, whole, left_out, load(None, args.fixers).fixers)
    talk(
        f"diagnose: takes {', '.join(stay)}; leaves out {', '.join(left_out)}. The run measured and checked what it "
        f"kept as a whole, not this selection: `diagnose fix --only {','.join(stay)} …` would"
    )
    return FOREIGN / f"{run.name}-{hashlib.sha256(change.text.encode()).hexdigest()[:12]}", change


def report(change: Patch, folder: Path, *, written: bool, as_json: bool, verb: str = "changed") -> str:
    """Return a text that says what was changed, for people or for programs."""
    counts = {each.path: each.line_counts() for each in change.changes}
    if as_json:
        files = [{"path": path, "added": added, "removed": removed} for path, (added, removed) in counts.items()]
        content: dict[str, object] = {"action": verb, "written": written, "root": str(change.root)}
        content |= {"from": str(folder), "files": files}
        if change.command is not None:
            content["command"] = list(change.command.before if verb == "restored" else change.command.after)
        return json.dumps(content, indent=2, ensure_ascii=False)
    if not written:
        return change.text
    lines = [f"{verb} {path} (+{added} −{removed})" for path, (added, removed) in counts.items()]
    if change.command is not None:
        lines.append(change.command.typed_before if verb == "restored" else change.command.typed)
    return "\n".join(lines)


def run_folders(project: Path = Path()) -> list[Path]:
    """All folders of a project that keep a patch, newest first; without a name those of the working directory."""
    found = [found for kept in (RUNS, FOREIGN) for found in (project / kept).glob(f"*/{patch.MANIFEST}")]
    return [manifest.parent for manifest in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def run_folder_of(name: str) -> Path | None:
    """The folder that a word of the command line means: a path, or the name of a run below `.diagnose`."""
    return next((folder for folder in (Path(name), RUNS / name, FOREIGN / name) if folder.is_dir()), None)


def is_project(folder: Path) -> bool:
    """Whether a folder is none of a run, but one where programs were run."""
    return not (folder / patch.MANIFEST).exists() and (folder / RUNS.parent).is_dir()


def require_near(folder: Path, change: Patch) -> None:
    """Raise PatchConflict where a run folder from elsewhere names files that lie neither here nor beside it.

    A run folder says by itself which files its patch is for. One that came from somebody else could name any.
    """
    if folder.is_relative_to(RUNS.parent):
        return
    root = change.root.resolve()
    for place in (Path.cwd(), *folder.resolve().parents[2:3]):
        if root.is_relative_to(place) or (root in place.parents and (root / ".git").exists()):
            return
    raise PatchConflict(
        f"the patch of {folder} is for files in {root}, neither here nor beside that run; nothing was written. "
        f"If you trust it, `cd {shlex.quote(str(root))}` first"
    )


def elsewhere(command: str, kept: Callable[[Path], list[Path]]) -> str:
    """Return the command to type where nothing is kept: it names the nearest folder around this one that keeps
    something.
    """
    above = next((folder for folder in Path.cwd().parents if kept(folder)), None)
    return f" (but in {above}: `diagnose {command} {shlex.quote(str(above))}`)" if above else ""


def keep(folder: Path, change: Patch) -> None:
    """Keep a patch whose home is `.diagnose`, which git shall not see."""
    ignore = FOREIGN.parent / ".gitignore"
    if not ignore.exists():
        ignore.parent.mkdir(parents=True, exist_ok=True)
        ignore.write_text("*\n")
    patch.store(change, folder)


def _chosen(name: str | None) -> tuple[Path, Patch]:
    if name is None:
        runs = _runs(Path())
        if not runs:
            near = elsewhere("apply", _runs)
            raise UsageError(f"there is no run with a patch here{near}; `diagnose fix SCRIPT` makes one")
        newest = latest()
        if newest is not None and not (newest / patch.MANIFEST).exists():
            talk(f"diagnose: the latest run, {newest.name}, left no patch; this is the one of {runs[0].name}")
        return runs[0], patch.load(runs[0])
    folder = run_folder_of(name)
    if folder is not None:
        runs = _runs(folder) if is_project(folder) else []
        folder = runs[0] if runs else folder
        return folder, patch.load(folder)
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError:
        raise InputError(name, f"no such file, and no run of that name below {RUNS}{names_of_runs()}") from None
    except OSError as error:
        raise InputError(name, f"no run, and no diff that can be read ({error.strerror})") from error
    return FOREIGN / hashlib.sha256(data).hexdigest()[:12], _foreign(data, name)


def _runs(project: Path) -> list[Path]:
    return [folder for folder in run_folders(project) if folder.parent.name == RUNS.name]


def _explained(error: PatchConflict, folder: Path, change: Patch) -> PatchConflict:
    """Add the way out to a conflict: which patch of ours is in the way, or how to merge with what the user edited."""
    paths = {change.root / each.path for each in change.changes}
    for other in run_folders(folder.parent.parent.parent):
        if other.resolve() == folder.resolve() or patch.applied_at(other) is None:
            continue
        applied = patch.load(other)
        if paths & {applied.root / each.path for each in applied.changes}:
            way = shlex.quote(other.name if other.is_relative_to(RUNS.parent) else str(other))
            what = f"the patch of {other.name} is in these files; `diagnose revert {way}` takes it back first"
            return PatchConflict(f"nothing was written: {what}")
    if not change.root.is_dir():
        diff = shlex.quote(str((folder / patch.DIFF).resolve()))
        return PatchConflict(f"{error}; `git apply {diff}` writes the patch where the program is now")
    if "changed since" in str(error) and (folder / patch.DIFF).exists():
        return PatchConflict(f"{error}, or merge it with your edit: {by_hand(folder, change)}")
    return error


def by_hand(folder: Path, change: Patch, *options: str) -> str:
    """The command that writes the patch, or takes it out, where the files were edited since."""
    there = "" if change.root == Path.cwd() else f"-C {shlex.quote(str(change.root))} "
    return f"git {there}apply {' '.join((*options, shlex.quote(str((folder / patch.DIFF).resolve()))))}"


def _foreign(data: bytes, name: str) -> Patch:
    """The patch of a diff file, in the working directory or else at the top of the work tree around it."""
    here = Path.cwd()
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    paths = [file.path for file in patch.parse_diff(data, name) if file.before is not None]
    root = here if all((here / path).exists() for path in paths) or not (top / (paths or [""])[0]).exists() else top
    return patch.from_diff(data, root, name)
