"""The order in which files come and go, as the program itself could see it.

A write that nobody looks at may happen a little later: a checkpoint in the background leaves the same files. What is
compared is therefore, of each path, the order of writes, reads, renames and removals, with writes that follow each
other counted once; and what there was whenever a folder was listed or another program was started. A file that is
written under another name first and then renamed to its own counts as written then.
"""

from __future__ import annotations

from collections.abc import Sequence

_ALWAYS_THERE = "."


def history(events: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Return the events of each path in order, and under `<looks>` what each listing of a folder found."""
    events = _without_detours(events)
    found: dict[str, list[str]] = {}
    there: set[str] = set()
    for kind, path, after in events:
        if kind in ("made", "written"):
            there.add(path)
            if found.setdefault(path, [])[-1:] != ["written"]:
                found[path].append("written")
        elif kind == "read":
            found.setdefault(path, []).append("read")
        elif kind == "removed":
            gone = {one for one in there if one == path or one.startswith(f"{path}/")}
            there -= gone
            found.setdefault(path, []).append("removed")
        elif kind == "renamed":
            there.discard(path)
            there.add(after)
            found.setdefault(path, []).append(f"renamed to {after}")
            found.setdefault(after, []).append(f"renamed from {path}")
        else:
            inside = sorted(one for one in there if kind == "started" or _lies_in(one, path))
            found.setdefault("<looks>", []).append(f"{kind} {path}: {', '.join(inside)}".strip())
    return found


def differences(
    original: dict[str, list[str]], patched: dict[str, list[str]], noise: Sequence[dict[str, list[str]]]
) -> list[str]:
    """Return the differences in file events, in words. Paths on which the original differs from itself are left out."""
    found = []
    for path in sorted(original.keys() | patched.keys()):
        before, after = original.get(path, []), patched.get(path, [])
        if before == after or any(run.get(path, []) != before for run in noise):
            continue
        title = "what it finds when it looks into folders" if path == "<looks>" else path
        if not before or not after:
            continue  # told by the files that are left, or by a file that came and went unseen
        place = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
        if place is None:
            found.append(f"{title}: {len(after)} events instead of {len(before)}")
        else:
            found.append(f"{title}: “{after[place]}” where the original has “{before[place]}”")
    return found


def _without_detours(events: Sequence[Sequence[str]]) -> list[tuple[str, str, str]]:
    """A file that this run made beside its place and renamed to it is written at the rename."""
    renamed = {path: at for at, (kind, path, _) in enumerate(events) if kind == "renamed"}
    found: list[tuple[str, str, str]] = []
    made: set[str] = set()
    for at, (kind, path, after) in enumerate(events):
        if kind == "made" and renamed.get(path, -1) > at:
            made.add(path)
        elif kind == "renamed" and path in made:
            made.discard(path)
            found.append(("written", after, ""))
        elif path not in made or kind in ("listed", "started"):
            found.append((kind, path, after))
    return found


def _lies_in(path: str, folder: str) -> bool:
    if folder in ("", _ALWAYS_THERE):
        return True
    return path.startswith(folder.split("*")[0].rstrip("/") + ("/" if "*" not in folder else ""))
