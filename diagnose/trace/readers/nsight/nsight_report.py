"""Reads `.nsys-rep` and `.qdrep` with the help of nsys: only it knows the format, but it exports SQLite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers.nsight import nsight_sqlite
from diagnose.trace.readers.reader import Reader

EXPORT_SECONDS = 900
"""nsys exports some 10 to 50 MB of a report in a second; reports of a few hundred MB are usual."""

_SUFFIXES = (".nsys-rep", ".qdrep")
_MARK = b"Tegra Profiler"
_TOLD = 200


def read(path: Path, seconds: float = EXPORT_SECONDS) -> list[Trace]:
    """The traces of a report. Raises NotATrace where nsys is not on the PATH, InputError where it cannot export."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise NotATrace(
            path,
            "this is an Nsight Systems report, whose format only nsys itself knows, and nsys is not on the PATH; "
            f"export it where nsys is: nsys export --type sqlite {path.name}",
        )
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        database = Path(folder) / "report.sqlite"
        _export(nsys, path, database, seconds)
        try:
            traces = nsight_sqlite.read(database)
        except InputError as error:
            raise type(error)(path, str(error).removeprefix(f"{database}: ")) from error
    return [_from(path, database, trace) for trace in traces]


def _from(path: Path, database: Path, trace: Trace) -> Trace:
    warnings = tuple(warning.replace(str(database), str(path)) for warning in trace.warnings)
    return replace(trace, source=str(path), warnings=warnings)


def _export(nsys: str, path: Path, database: Path, seconds: float) -> None:
    command = [nsys, "export", "--type", "sqlite", "--output", str(database), "--force-overwrite", "true", str(path)]
    # Its own group: nsys starts helpers of its own, which must end with it.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        raise InputError(
            path,
            f"nsys did not export it within {seconds:g} s; export it yourself: nsys export --type sqlite {path.name}",
        ) from None
    except BaseException:
        _end(process)
        raise
    if process.returncode != 0 or not database.is_file():
        words = " ".join(said.decode("utf-8", "replace").split())[-_TOLD:]
        raise InputError(
            path, f"nsys could not export it ({words or 'it said nothing'}); use the nsys that recorded it"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _sniffs(head: bytes, path: Path) -> bool:
    # Reports have no bytes in common but these, and not all have them: there the name must help.
    return _MARK in head[:512] or (path.suffix.lower() in _SUFFIXES and b"\0" in head[:4096])


READER = Reader("Nsight Systems report", _sniffs, read)
