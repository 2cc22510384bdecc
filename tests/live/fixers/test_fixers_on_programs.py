"""Input fixers on programs as people write them: the edit is where the value is kept, and the numbers stay."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from loader_programs import CONFIGURATOR, DIGITS, PICTURES, TEXT
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Advice, Answer, Edits, Facts, Finding, Request, Site
from diagnose.model import Confidence, Place, Scalar, Severity
from diagnose.plugins import load

FIXERS = load().fixers


def asked(
    name: str, text: str, rule: str = "input-bound", *, more: Mapping[str, str] | None = None, **loader: Scalar
) -> Request:
    """The request after a run of the program on a CUDA machine, with the finding at every line that copies."""
    lines = text.splitlines()
    number = next((number for number, line in enumerate(lines, 1) if "loader = " in line and "DataLoader(" in line), 0)
    sites = [Site("DataLoader", name, number, arguments=loader)] if loader else []
    places = tuple(Place(name, n) for n, line in enumerate(lines, 1) if ".to(device), " in line)
    finding = Finding(rule, Severity.HIGH, 0, 10**7, 0.5, Confidence.MEASURED, "", where=places)
    facts = Facts(device_name="NVIDIA H200", cpu_count=8)
    return Request(finding, {name: text, **(more or {})}, sites, facts, {}, name)


def changed(text: str, answer: Answer, name: str = "train.py") -> list[str]:
    """The lines that a fixer takes away and puts in."""
    assert isinstance(answer, Edits), answer
    diff = difflib.ndiff(text.splitlines(), answer.files[name].splitlines())
    return [line for line in diff if line[0] in "+-"]


def with_setting(request: Request, **setting: Scalar) -> Request:
    return Request(
        request.finding,
        request.sources,
        request.sites,
        request.facts,
        setting,
        request.entry,
        request.configs,
        request.words,
    )


def test_workers_go_into_the_dictionary_that_the_loader_takes() -> None:
    request = with_setting(asked("train.py", DIGITS, num_workers=1, shuffle=True), num_workers=4)
    assert changed(DIGITS, FIXERS["loader-workers"].rewrite(request)) == [
        "-         cuda_kwargs = {'num_workers': 1,",
        "+         cuda_kwargs = {'num_workers': 4,",
        "-                        'shuffle': True}",
        "+                        'shuffle': True,",
        "+                        'pin_memory': True}",
    ]


def test_persistent_workers_and_prefetching_go_there_too() -> None:
    request = asked("train.py", DIGITS, num_workers=1, shuffle=True)
    assert "+                        'persistent_workers': True}" in changed(
        DIGITS, FIXERS["persistent-workers"].rewrite(request)
    )
    assert "+                        'prefetch_factor': 4}" in changed(
        DIGITS, FIXERS["loader-prefetch"].rewrite(request)
    )


EITHER = "kwargs = {'num_workers': 1, 'pin_memory': True} if use_cuda else {}\n"
ONE_OF_TWO = f"from torch.utils.data import DataLoader\n\n{EITHER}loader = DataLoader(digits, batch_size=8, **kwargs)\n"


@pytest.mark.parametrize(
    ("device", "workers", "expected"),
    [
        ("NVIDIA H200", 1, EITHER.replace("'num_workers': 1", "'num_workers': 4")),
        (None, 0, EITHER.replace("{}", "{'num_workers': 4}")),
    ],
    ids=["on a device", "on the CPU"],
)
def test_the_dictionary_is_changed_that_the_run_took(device: str | None, workers: int, expected: str) -> None:
    def after_a_run(text: str) -> Request:
        request = asked("train.py", text, num_workers=workers, pin_memory=device is not None, shuffle=False)
        return replace(request, facts=Facts(device_name=device, cpu_count=8))

    answer = FIXERS["loader-workers"].rewrite(with_setting(after_a_run(ONE_OF_TWO), num_workers=4))
    assert isinstance(answer, Edits), answer
    assert answer.files["train.py"] == ONE_OF_TWO.replace(EITHER, expected)
    kept = FIXERS["persistent-workers"].rewrite(after_a_run(answer.files["train.py"]))
    assert isinstance(kept, Edits), kept
    halves = kept.files["train.py"].split("use_cuda")
    assert ["persistent_workers" in half for half in halves] == [device is not None, device is None]


def test_a_dictionary_of_which_nothing_is_known_is_added_to() -> None:
    request = replace(
        asked("train.py", ONE_OF_TWO.replace("use_cuda", "quick")), facts=Facts(device_name="NVIDIA H200")
    )
    answer = FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))
    assert isinstance(answer, Edits), answer
    assert '**{**kwargs, "num_workers": 4, "pin_memory": True}' in answer.files["train.py"]


def test_on_a_device_the_dictionary_is_changed_that_the_device_takes() -> None:
    request = replace(asked("train.py", ONE_OF_TWO), facts=Facts(device_name="NVIDIA H200"))
    answer = FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))
    assert isinstance(answer, Edits), answer
    assert answer.files["train.py"] == ONE_OF_TWO.replace("'num_workers': 1", "'num_workers': 4")


def test_an_update_that_the_run_passed_by_is_not_edited() -> None:
    request = asked("train.py", DIGITS, num_workers=0, shuffle=False, pin_memory=False)
    assert changed(DIGITS, FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))) == [
        "-     train_kwargs = {'batch_size': args.batch_size}",
        "+     train_kwargs = {'batch_size': args.batch_size, 'num_workers': 4, 'pin_memory': True}",
    ]


@pytest.mark.parametrize(
    "chosen", ["Endless", "Endless if keep else DataLoader", None], ids=["a variable", "either", "by its name"]
)
def test_a_loader_of_the_programs_own_kind_is_found_where_it_is_built(chosen: str | None) -> None:
    text = "from torch.utils.data import DataLoader\n\n\nclass Endless(DataLoader):\n    pass\n\n\n"
    text += f"kind = {chosen}\nloader = kind(data, num_workers=0)\n" if chosen else "loader = Endless(data)\n"
    site = Site("DataLoader", "train.py", text.count("\n"), arguments={"name": "Endless", "num_workers": 0})
    request = replace(asked("train.py", text), sites=[site], facts=Facts(cpu_count=8))
    answer = FIXERS["loader-workers"].rewrite(with_setting(request, num_workers=4))
    assert changed(text, answer)[1].endswith("(data, num_workers=4)")


def test_workers_go_into_the_default_of_the_option() -> None:
    request = with_setting(asked("train.py", PICTURES, num_workers=0, shuffle=True), num_workers=4)
    assert changed(PICTURES, FIXERS["loader-workers"].rewrite(request)) == [
        "- parser.add_argument('-j', '--workers', default=0, type=int, metavar='N',",
        "+ parser.add_argument('-j', '--workers', default=4, type=int, metavar='N',",
        "-         num_workers=args.workers, sampler=train_sampler)",
        "+         num_workers=args.workers, sampler=train_sampler, pin_memory=True)",
    ]


def test_an_option_that_was_given_stays_what_was_asked_for_at_least() -> None:
    request = with_setting(asked("train.py", PICTURES, num_workers=2, shuffle=True), num_workers=4)
    assert "+         num_workers=max(args.workers, 4), sampler=train_sampler, pin_memory=True)" in changed(
        PICTURES, FIXERS["loader-workers"].rewrite(request)
    )


@pytest.mark.parametrize(("text", "copies"), [(DIGITS, 1), (PICTURES, 2)])
def test_only_copies_of_training_are_not_waited_for(text: str, copies: int) -> None:
    request = asked("train.py", text, "pageable-copies", num_workers=1, shuffle=True, pin_memory=False)
    new = [line for line in changed(text, FIXERS["nonblocking-copies"].rewrite(request)) if line[0] == "+"]
    assert sum("non_blocking=True" in line for line in new) >= copies
    assert sum("pin_memory" in line for line in new) == 1


def test_batches_of_the_programs_own_are_pinned_where_the_device_needs_it() -> None:
    request = asked("train.py", TEXT, "pageable-copies", more={"configurator.py": CONFIGURATOR})
    assert changed(TEXT, FIXERS["nonblocking-copies"].rewrite(request)) == [
        "-     x, y = x.to(device), y.to(device)",
        "+     if 'cuda' in device:",
        "+         x, y = x.pin_memory(), y.pin_memory()",
        "+     x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)",
    ]


def run(folder: Path, files: Mapping[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*LIGHT_PYTHON, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env=environment,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("text", "rule", "fixers"),
    [
        (DIGITS, "pageable-copies", ["loader-workers", "loader-prefetch", "nonblocking-copies"]),
        (PICTURES, "pageable-copies", ["loader-workers", "loader-pin", "loader-prefetch", "nonblocking-copies"]),
        (TEXT, "pageable-copies", ["nonblocking-copies"]),
    ],
    ids=["digits", "pictures", "text"],
)
def test_the_patched_program_prints_the_same_numbers(text: str, rule: str, fixers: list[str], tmp_path: Path) -> None:
    more = {"configurator.py": CONFIGURATOR}
    before = run(tmp_path, {"train.py": text, **more})
    patched = text
    for name in fixers:
        workers = {"num_workers": 0 if text is PICTURES else 1, "shuffle": True, "pin_memory": False}
        request = asked("train.py", patched, rule, more=more, **({} if text is TEXT else workers))
        setting = FIXERS[name].settings(request)[0]
        answer = FIXERS[name].rewrite(with_setting(request, **setting))
        assert not isinstance(answer, Advice), answer.text
        patched = answer.files["train.py"] if answer is not None else patched
    assert patched != text
    assert len(before.splitlines()) > 4
    assert run(tmp_path, {"train.py": patched}) == before
