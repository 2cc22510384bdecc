"""docs/formats.md names every format, table and column, and says truly which format fills which.

`python tests/contracts/test_formats_documented.py` writes the part of it that follows from the schema and the readers.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from diagnose.errors import NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers import formats, open_traces
from diagnose.trace.schema import TABLES, Table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "formats.md"
BEGIN, END = "<!-- written by tests/contracts/test_formats_documented.py: begin -->\n", "<!-- end -->"

SHORT = {
    "torch.profiler": "torch",
    "Nsight Systems": "nsys",
    "Nsight tables": "nsys, ncu CSV",
    "rocprofv3 JSON": "v3 JSON",
    "rocpd": "rocpd",
    "Perfetto": "Perfetto",
    "rocprof CSV": "AMD CSV",
    "rocprof database": "v1 db",
    "rocprof JSON": "v1 JSON",
    "rpd": "rpd",
    "memory snapshot": "snapshot",
    "memory timeline": "timeline",
    "telemetry": "telemetry",
    "run folder": "run",
}
"""The seeds of the fuzzer by what their columns are called here."""


@cache
def filled() -> dict[str, set[tuple[str, str]]]:
    """By format, the columns that one of its small recordings fills, as (field of the trace, column)."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    seeds: Any = importlib.import_module("fuzz_seeds")
    found: dict[str, set[tuple[str, str]]] = {}
    for form, inputs in seeds.seeds().items():
        mine = found.setdefault(form, set())
        for number, data in enumerate(inputs):
            with tempfile.TemporaryDirectory() as folder:
                for trace in read(seeds.put(data, Path(folder)), is_optional=number > 0):
                    mine |= columns_of(trace)
    return found


def read(path: Path, *, is_optional: bool) -> list[Trace]:
    try:
        return open_traces([path])
    except NotATrace:
        if is_optional:  # a list of processors, which only helps other files
            return []
        raise


def columns_of(trace: Trace) -> set[tuple[str, str]]:
    tables = [(spec.name, getattr(trace, spec.name)) for spec in fields(trace)]
    return {
        (name, column.name)
        for name, table in tables
        if isinstance(table, Table)
        for column in table.columns()
        if (getattr(table, column.name) != column.metadata["missing"]).any()
    }


def fields_of(table: type[Table]) -> list[str]:
    """Where a trace holds such a table."""
    return [spec.name for spec in fields(Trace) if spec.type == table.__name__]


def rendered() -> str:
    """Each table with its columns, units, meanings, and which format fills them."""
    sections = []
    for table in TABLES:
        names = fields_of(table)
        forms = [form for form in SHORT if any(name in names for name, _ in filled()[form])]
        said = " ".join((table.__doc__ or "").split("\n\n")[0].split())
        lines = [f"### {table.__name__}", "", f"`{'`, `'.join(names)}`: {said}", ""]
        lines.append("| column | unit | meaning | " + " | ".join(SHORT[form] for form in forms) + " |")
        lines.append("|---" * (3 + len(forms)) + "|")
        for column in table.columns():
            marks = ["●" if any((name, column.name) in filled()[form] for name in names) else "" for form in forms]
            unit, meaning = column.metadata["unit"], column.metadata["meaning"]
            lines.append(f"| `{column.name}` | {unit} | {meaning} | " + " | ".join(marks) + " |")
        sections.append("\n".join(lines))
    return "\n" + "\n\n".join(sections) + "\n\n"


def parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    written, _, after = rest.partition(END)
    return before, written, after


def test_the_tables_are_those_of_the_schema_and_of_the_readers() -> None:
    assert parts()[1] == rendered(), f"run: python tests/contracts/{Path(__file__).name}"


def test_every_table_and_column_has_a_unit_and_a_meaning() -> None:
    written = parts()[1]
    for table in TABLES:
        assert f"### {table.__name__}\n" in written
        assert fields_of(table), f"no trace holds {table.__name__}"
        for column in table.columns():
            assert re.search(rf"^\| `{column.name}` \| \S.* \| \S.* \|", written, re.MULTILINE)


def test_every_column_is_filled_by_some_format() -> None:
    columns = {(name, column.name) for table in TABLES for name in fields_of(table) for column in table.columns()}
    assert columns - set().union(*filled().values()) == {
        ("device_ranges", "thread"),  # a device has no threads
    }


def test_every_format_is_named() -> None:
    rows = set(re.findall(r"^\| ([^|]+?) \|", parts()[0], re.MULTILINE))
    assert {reader.name for reader in formats()} | {"run folder"} == rows - {"format", "---"}
    assert set(SHORT) == set(filled())


def test_the_readme_leads_here() -> None:
    assert "(docs/formats.md)" in (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists()


if __name__ == "__main__":
    first, _, last = parts()
    PAGE.write_text(first + BEGIN + rendered() + END + last)
