"""The generated pages of the documentation: `python -m diagnose.cli.reference_files docs/reference`."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diagnose
from diagnose import errors
from diagnose.cli import command_parsers
from diagnose.report.export.json_schema import diagnosis_schema, run_schema

_MADE = "Made from the code by `make reference`."


def pages() -> dict[str, str]:
    """All files of the folder, by name."""
    return {
        "commands.md": commands_page(),
        "python.md": python_page(),
        "json.md": json_page(),
        "diagnosis.schema.json": json.dumps(diagnosis_schema(), indent=2, ensure_ascii=False) + "\n",
        "run.schema.json": json.dumps(run_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def commands_page() -> str:
    """Every command with its options, and the exit codes."""
    lines = ["# Commands", "", _MADE]
    for name, (said, parser) in command_parsers().items():
        usage = re.sub(r"\s+", " ", parser.format_usage()).removeprefix("usage: ").strip()
        lines += ["", f"## {name}", "", f"{said[:1].upper()}{said[1:]}.", "", "```text", usage, "```"]
        rows = [
            f"| {_option(one)} | {_cell((one.help or '') % {'default': one.default, 'prog': parser.prog})} |"
            for one in parser._actions
            if one.dest != "help" and one.help != argparse.SUPPRESS
        ]
        lines += ["", "| argument | meaning |", "|---|---|", *rows] if rows else []
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|", *_exit_codes()]
    return "\n".join(lines) + "\n"


def _option(action: argparse.Action) -> str:
    metavar = action.metavar or (",".join(map(str, action.choices)) if action.choices else action.dest.upper())
    metavar = (" ".join(metavar) if isinstance(metavar, tuple) else metavar).replace("|", " or ")
    if not action.option_strings:
        return _code(metavar)
    value = "" if action.nargs == 0 else f" {metavar}"
    return ", ".join(_code(f"{name}{value}") for name in action.option_strings)


def _exit_codes() -> Iterator[str]:
    yield "| 0 | done |"
    yield "| 1 | only under `--fail-on`: a finding is that severe, or a run became that much slower |"
    yield f"| {errors.DiagnoseError.exit_code} | the input or the call is wrong; the message says what to do |"
    yield f"| {errors.ProgramFailed.exit_code} | your program failed |"
    yield f"| {errors.Cancelled.exit_code} | interrupted |"


def python_page() -> str:
    """The names that `diagnose` offers to Python, with their docstrings."""
    lines = ["# Python", "", _MADE, "", "[How to use them](../python.md)."]
    for name in diagnose.__all__:
        thing = getattr(diagnose, name)
        lines += ["", f"## diagnose.{name}", "", "```python", _signature(name, thing), "```", "", _prose(thing)]
        if inspect.isclass(thing):
            for member, value in sorted(vars(thing).items(), key=lambda item: (item[0].startswith("_"), item[0])):
                documented = value.fget if isinstance(value, property) else value
                if member.startswith("_") or not callable(documented) or not documented.__doc__:
                    continue
                shown = f"`.{member}`" if isinstance(value, property) else f"`.{_signature(member, documented)}`"
                lines += ["", f"- {shown}: {_prose(documented)}"]
    return "\n".join(lines) + "\n"


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    shown = str(signature.replace(parameters=[one for one in signature.parameters.values() if one.name != "self"]))
    return f"{name}{shown}".replace("'", "").removesuffix(" -> None")


def _prose(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def json_page() -> str:
    """The fields of what `--json` prints."""
    lines = [
        "# JSON",
        "",
        f"{_MADE} `diagnose analyze --json` prints a [Diagnosis](#diagnosis); `diagnose run --json`, `diagnose fix "
        "--json` and `diagnose report --format json` of a run print a [RunObject](#runobject). Fields are added under "
        "the same `schema`, never renamed. Times are integer nanoseconds, shares are of 1; `null` is unknown.",
        "",
        "JSON Schema: [diagnosis.schema.json](diagnosis.schema.json), [run.schema.json](run.schema.json).",
    ]
    for name, part in sorted(run_schema()["$defs"].items()):
        if "properties" not in part:
            lines += ["", f"## {name}", "", f"One of {', '.join(_code(one) for one in part['enum'])}."]
            continue
        lines += ["", f"## {name}", "", " ".join(part.get("description", "").split()), ""]
        lines += ["| field | type | meaning |", "|---|---|---|"]
        for field, value in part["properties"].items():
            lines.append(f"| `{field}` | {_cell(_type(value))} | {_cell(value.get('description', ''))} |")
    return "\n".join(lines) + "\n"


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_type(one) for one in value["anyOf"])
    if "enum" in value:
        return ", ".join(_code(str(one)) for one in value["enum"])
    if value.get("type") == "array":
        parts = value.get("prefixItems")
        inner = ", ".join(map(_type, parts)) if parts else _type(value["items"]) if value.get("items") else "any"
        return f"array of {inner}"
    if value.get("type") == "object":
        return f"object of {_type(value['additionalProperties'])}" if value.get("additionalProperties") else "object"
    return str(value.get("type", "any"))


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(folder: Path) -> None:
    """Write the files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
