"""Programs whose loop is a library's, run with the library itself: what is recorded of them, what fixes leave equal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from watching import BARE, LIMIT_S, PROGRAMS, QUICK

from diagnose.collect import environment
from diagnose.fixer import Edits, Facts, Site, example_request
from diagnose.model import Scalar
from diagnose.plugins import load

FIXERS = load().fixers
CPU = Facts(cpu_count=2)

needs_trainer = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="Transformers or Accelerate is not installed",
)
needs_accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="Accelerate is not installed")
needs_lightning = pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
needs_pytorch_lightning = pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="Lightning is absent")
OPTIONS = ("--output_dir", "out", "--max_steps", "8", "--use_cpu", "--report_to", "none", "--disable_tqdm", "true")


def losses(folder: Path, name: str, text: str, *words: str) -> list[float]:
    """What a program prints of its losses."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, name, *words]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("loss ")]
    assert found
    return found


def recorded(folder: Path, name: str, *words: str) -> list[Site]:
    """The sites that a watched run of a program leaves, its own file called by its name alone."""
    own = str(folder / name)
    return [
        Site(
            site["kind"],
            name if site["file"] == own else site["file"],
            site["line"],
            site.get("function"),
            site["arguments"],
            site["owned"],
        )
        for site in recorded_of(folder, name, (PROGRAMS / name).read_text(), *words)
    ]


def recorded_of(folder: Path, name: str, text: str, *words: str) -> list[Any]:
    """The raw sites that a watched run of a text leaves; `folder`, a new one, gets what the libraries write there."""
    folder.mkdir()
    (folder / name).write_text(text)
    base = {**BARE, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables = environment(QUICK.to_json(folder / "run"), base)
    command = [sys.executable, name, *words]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in (folder / "run" / "rank0" / "sites.jsonl").read_text().splitlines()]


def patched(
    fixer: str,
    name: str,
    sites: Sequence[Site],
    words: Sequence[str] = (),
    *,
    setting: Mapping[str, Scalar] | None = None,
) -> str:
    """A program after one fix."""
    text = (PROGRAMS / name).read_text()
    where = [number for number, line in enumerate(text.splitlines(), 1) if ".item()" in line]
    request = example_request("input-bound", text, sites=sites, facts=CPU, setting=setting, lines=where)
    request = replace(request, sources={name: text}, entry=name, words=(name, *words))
    finding = replace(request.finding, where=tuple(replace(each, file=name) for each in request.finding.where))
    answer = FIXERS[fixer].rewrite(replace(request, finding=finding))
    assert isinstance(answer, Edits), answer
    return answer.files[name]


def within(folder: Path, name: str, sites: Sequence[Site], bounds: Mapping[str, float]) -> bool:
    """Whether after each of the fixes alone, losses are the same up to a relative bound."""
    settings: dict[str, dict[str, Scalar]] = {"loader-workers": {"num_workers": 2}, "bigger-microbatch": {"factor": 2}}
    before = losses(folder / "before", name, (PROGRAMS / name).read_text())
    for fixer, bound in bounds.items():
        after = losses(folder / fixer, name, patched(fixer, name, sites, setting=settings.get(fixer)))
        assert after == pytest.approx(before, rel=bound, abs=0.0), fixer
    return True


def line_of(name: str, text: str) -> int:
    """The line of a program that holds a text."""
    return next(number for number, line in enumerate((PROGRAMS / name).read_text().splitlines(), 1) if text in line)


@needs_trainer
def test_a_program_of_the_trainer_computes_the_same_after_its_fixes(tmp_path: Path) -> None:
    name = "hf_trainer.py"
    sites = recorded(tmp_path / "run", name, "30")
    lines = {site.arguments.get("called_from") for site in sites if site.kind in {"DataLoader", "optimizer"}}
    assert lines == {f"{tmp_path / 'run' / name}:{line_of(name, 'trainer.train()')}"}
    assert within(
        tmp_path,
        name,
        sites,
        {"loader-workers": 0, "fused-optimizer": 1e-4, "bigger-microbatch": 1e-3, "autocast-bf16": 2e-2},
    )


@needs_trainer
def test_defaults_of_the_parser_and_files_of_options_reach_the_trainer(tmp_path: Path) -> None:
    name = "hf_options.py"
    sites = recorded(tmp_path / "run", name, *OPTIONS)
    before = losses(tmp_path / "before", name, (PROGRAMS / name).read_text(), *OPTIONS)
    text = patched("loader-workers", name, sites, OPTIONS, setting={"num_workers": 2})
    assert "parser.set_defaults(dataloader_num_workers=2)" in text
    assert losses(tmp_path / "after", name, text, *OPTIONS) == before
    again = recorded_of(tmp_path / "again", name, text, *OPTIONS)
    assert [site["arguments"]["num_workers"] for site in again if site["kind"] == "DataLoader"][:1] == [2]


@needs_accelerate
def test_a_loop_that_accelerate_prepared_computes_the_same_after_its_fixes(tmp_path: Path) -> None:
    name = "accelerate_loop.py"
    sites = recorded(tmp_path / "run", name)
    assert (name, line_of(name, "= DataLoader("), True) in [(site.file, site.line, site.owned) for site in sites]
    assert within(
        tmp_path, name, sites, {"loader-workers": 0, "defer-item": 0, "fused-optimizer": 0.0001, "autocast-bf16": 0.02}
    )


@needs_lightning
def test_a_lightning_module_computes_the_same_after_its_fixes(tmp_path: Path) -> None:
    name = "lightning_fit.py"
    sites = recorded(tmp_path / "run", name)
    kinds = {(site.kind, site.line) for site in sites if site.file == name and site.owned}
    assert {("DataLoader", line_of(name, "= DataLoader(")), ("optimizer", line_of(name, "optim.AdamW"))} <= kinds
    assert within(
        tmp_path,
        name,
        sites,
        {
            "loader-workers": 0,
            "defer-item": 0,
            "fused-optimizer": 0.0001,
            "compile-model": 0.0001,
            "autocast-bf16": 0.02,
        },
    )


@needs_pytorch_lightning
def test_a_loader_of_a_data_module_is_found_where_the_user_builds_it(tmp_path: Path) -> None:
    name = "lightning_data.py"
    sites = recorded(tmp_path / "run", name)
    loaders = [(site.file, site.line, site.owned) for site in sites if site.kind == "DataLoader"]
    assert loaders == [(name, line_of(name, "return DataLoader("), True)]
    before = losses(tmp_path / "before", name, (PROGRAMS / name).read_text())
    text = patched("loader-workers", name, sites, setting={"num_workers": 2})
    assert re.search(r"num_workers=2\)?:", text)
    assert losses(tmp_path / "after", name, text) == before
