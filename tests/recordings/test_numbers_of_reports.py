"""No number in a report is invented: each is of the diagnosis or a quotient of two; what is missing is not 0."""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnose.engine import diagnose
from diagnose.model import Diagnosis
from diagnose.plugins import Catalogue, load
from diagnose.report.export import contract
from diagnose.report.terminal import text
from diagnose.report.wording.phrases import DEVICE_ON_PATH
from diagnose.trace.readers import open_traces

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
SAMPLES = ("h200_naive_gpt", "h200_input_bound_tokenizer", "h200_straggler", "h200_small_batch")
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 6e10, "%": 0.01}
UNITS |= {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
MEASURE = re.compile(r"(?<![\w.,/:<>-])(\d[\d,]*(?:\.(\d+))?) (" + "|".join(map(re.escape, UNITS)) + r")(?!\w)")


@cache
def catalogue() -> Catalogue:
    return load()


@cache
def diagnosis_of(sample: str) -> Diagnosis:
    return diagnose(open_traces([FOLDER / sample]), catalogue())


def numbers(value: Any) -> Iterator[float]:
    """All numbers of a document, those within its texts as well: rules word their own evidence."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(number.replace(",", "")) * UNITS[unit] for number, _, unit in MEASURE.findall(value))


def measures_in(report: str) -> set[tuple[str, float, float]]:
    """What the report says, its value, and half a unit of its last digit."""
    found = set()
    for match in MEASURE.finditer(report):
        number, decimals, unit = match.groups()
        value = float(number.replace(",", "")) * UNITS[unit]
        found.add((match[0], value, 0.51 * UNITS[unit] * 10.0 ** -len(decimals or "")))
    return found


def sources_of(diagnosis: Diagnosis) -> list[float]:
    """The diagnosis's numbers; its times also per step, as shares of all steps, of the compute of one or of the
    critical path or of its host and device sides, and what a step has beyond them."""
    known = {abs(number) for number in numbers(json.loads(contract.render(diagnosis)))}
    total_ns, steps = diagnosis.accounting.total_ns, diagnosis.steps.count
    times = {number for number in known if number > 1000}
    path = diagnosis.critical_path or {}
    path_ns = sum(path.values()) or total_ns
    on_device = sum(took for name, took in path.items() if name in DEVICE_ON_PATH)
    times |= {on_device, path_ns - on_device}
    wholes = (steps, total_ns, total_ns / steps, path_ns, diagnosis.accounting.compute)
    step_ns = {total_ns / steps, diagnosis.ladder.step_ns if diagnosis.ladder else 0}
    beyond = {whole - time for time in times for whole in step_ns}
    return sorted(known | beyond | {time / whole for time in times for whole in wholes})


def unknown(said: set[tuple[str, float, float]], sources: list[float]) -> list[str]:
    """What is none of the sources, to its last digit."""
    found = []
    for words, value, off in sorted(said):
        next_one = bisect_left(sources, value - off)
        if next_one == len(sources) or sources[next_one] > value + off:
            found.append(words)
    return found


@pytest.mark.parametrize("sample", SAMPLES)
def test_each_number_of_the_text_is_one_of_the_diagnosis_or_a_quotient_of_two(sample: str) -> None:
    said, sources = measures_in(text.render(diagnosis_of(sample))), sources_of(diagnosis_of(sample))
    assert len(said) > 10
    assert unknown(said, sources) == []
    # Numbers of the same kind that are not so would be found.
    wrong = {(words, 1.37 * value, off) for words, value, off in said if value}
    assert len(unknown(wrong, sources)) > len(wrong) / 2


ZERO = re.compile(r"(?<![\w.,/:<>±+-])0(?:\.0+)? (?:%|ns|µs|ms|s|[KMG]?i?B)(?!\w)")
WORDS = re.compile(r"[^\W\d_]{3,}")


@pytest.mark.parametrize(
    "missing", ["counters", "facts", "ranges", "samples", "sites", "stacks", "steps", "syncs", "window", "trace"]
)
def test_what_is_missing_is_not_said_to_be_zero(tmp_path: Path, missing: str) -> None:
    """A line with a zero has its like in the report of the whole recording, or it stands on what is there."""
    run = tmp_path / "run"
    shutil.copytree(FOLDER / "h200_naive_gpt", run)
    (gone,) = (run / "rank0").glob(f"{missing}.*")
    gone.unlink()
    diagnosis = diagnose(open_traces([run]), catalogue())

    def zeros(report: str) -> set[str]:
        return {" ".join(WORDS.findall(line)) for line in report.splitlines() if ZERO.search(line)}

    assert zeros(text.render(diagnosis)) - zeros(text.render(diagnosis_of("h200_naive_gpt"))) == set()
    whole = json.loads(contract.render(diagnosis_of("h200_naive_gpt")))
    assert sorted(json.loads(contract.render(diagnosis))) == sorted(whole)
