"""Options that need workers are given only where there are some, whatever the number is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rewriting import FIXERS

from diagnose.fixer import Edits, Site, example_request
from diagnose.source.batches.option_reads import option_read
from diagnose.source.settings.command_line import CommandLine
from diagnose.source.tree.memo import parse_all

_TOP = "from torch.utils.data import DataLoader\n\n"


@pytest.mark.parametrize(
    ("count", "option"),
    [
        ("max(0, args.workers - 1)", "persistent_workers=max(0, args.workers - 1) > 0"),
        ("max(args.workers, least)", "persistent_workers=max(args.workers, least) > 0"),
        ("max(args.workers, 2)", "persistent_workers=True"),
    ],
)
def test_workers_are_kept_where_there_are_some(count: str, option: str) -> None:
    text = _TOP + f"loader = DataLoader(rows, num_workers={count})\n"
    site = Site("DataLoader", "train.py", 3, arguments={"num_workers": 2, "persistent_workers": False})
    answer = FIXERS["persistent-workers"].rewrite(example_request("periodic-stall", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    assert option in answer.files["train.py"]


@pytest.mark.parametrize("words", [(), ("--workers", "2")])
def test_workers_of_a_command_line_are_not_taken_for_granted(words: tuple[str, ...]) -> None:
    text = (
        "import argparse\n" + _TOP + "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--workers', type=int, default=4)\nargs = parser.parse_args()\n"
        "loader = DataLoader(rows, num_workers=args.workers)\n"
    )
    request = example_request("periodic-stall", text, sites=[Site("DataLoader", "train.py", 7)])
    answer = FIXERS["persistent-workers"].rewrite(replace(request, words=CommandLine(("train.py", *words), 1)))
    assert isinstance(answer, Edits), answer
    assert "num_workers=args.workers, persistent_workers=args.workers > 0)" in answer.files["train.py"]


@pytest.mark.parametrize("recorded", [{"num_workers": 8}, {}])
def test_fewer_workers_bound_what_is_asked_for_from_above(recorded: dict[str, int]) -> None:
    text = (
        "import argparse\n" + _TOP + "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--workers', type=int, default=8)\nargs = parser.parse_args()\nprint(args)\n"
        "loader = DataLoader(rows, num_workers=args.workers)\n"
    )
    sites = [Site("DataLoader", "train.py", 8, arguments=recorded)]
    answer = FIXERS["loader-workers"].rewrite(example_request("cpu-contention", text, sites=sites))
    assert isinstance(answer, Edits), answer
    assert "num_workers=min(args.workers, 4))" in answer.files["train.py"]


def test_where_cores_are_short_no_loader_gets_more_workers() -> None:
    text = _TOP + "many = DataLoader(rows, num_workers=8)\nfew = DataLoader(rows, num_workers=1)\n"
    sites = [Site("DataLoader", "train.py", line, arguments={"num_workers": n}) for line, n in ((3, 8), (4, 1))]
    answer = FIXERS["loader-workers"].rewrite(example_request("cpu-contention", text, sites=sites))
    assert isinstance(answer, Edits), answer
    assert answer.files["train.py"] == text.replace("num_workers=8", "num_workers=4")


_OTHER = "other = DataLoader(rows, num_workers=args.num_workers)\n"


@pytest.mark.parametrize(
    ("also", "read"), [("", None), (_OTHER, None), ("print(args.loader.num_workers)\n", "train.py:4")]
)
def test_the_option_that_builds_the_loader_is_no_read_of_it(also: str, read: str | None) -> None:
    text = _TOP + "args.loader = DataLoader(rows, num_workers=args.num_workers)\n" + also
    source = parse_all({"train.py": text})["train.py"]
    call = next(iter(source.calls_named("DataLoader")))
    assert option_read({"train.py": text}, source, call, "num_workers") == read


def test_the_option_that_a_function_builds_the_loader_with_is_no_read_of_it() -> None:
    text = (
        _TOP + "def loader_of(rows, num_workers):\n    return DataLoader(rows, num_workers=num_workers)\n\n\n"
        "args.loader = loader_of(rows, args.num_workers)\n"
    )
    source = parse_all({"train.py": text})["train.py"]
    call = next(iter(source.calls_named("DataLoader")))
    assert option_read({"train.py": text}, source, call, "num_workers") is None
