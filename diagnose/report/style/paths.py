"""File names as people want to read them: relative to where they work, and never wider than the column."""

from __future__ import annotations

from pathlib import PurePath

from rich.cells import cell_len, set_cell_size

from diagnose.model import Place


def relative_path(file: str, root: str | None) -> str:
    """`file` relative to `root` where it lies below it, else as it is."""
    if root and PurePath(file).is_absolute() and PurePath(file).is_relative_to(root):
        return str(PurePath(file).relative_to(root))
    return file


def place(where: Place, root: str | None) -> str:
    """`train.py:41`; the line is left out where it is unknown."""
    name = relative_path(where.file, root)
    return f"{name}:{where.line}" if where.line > 0 else name


def clip(text: str, width: int) -> str:
    """The beginning of `text` in at most `width` columns, with an ellipsis where something was cut."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)).rstrip() + "…"[: max(width, 0)]


def clipped_path(path: str, width: int) -> str:
    """The end of `path` in at most `width` columns: of a path, the end says most."""
    if cell_len(path) <= width:
        return path
    kept = path[len(path) - max(width - 1, 0) :]
    while cell_len(kept) >= max(width, 1):
        kept = kept[1:]
    return "…"[: max(width, 0)] + kept
