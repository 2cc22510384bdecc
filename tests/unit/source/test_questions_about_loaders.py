"""What fixers ask about a loader is looked for once, and only where the answer decides something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst
import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Advice, Edits
from diagnose.source.batches import loader as loaders
from diagnose.source.batches import shared_workers
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_effects import Trace
from diagnose.source.samples.sharing import open_handles, shared_state
from diagnose.source.tree.attributes import attribute_values
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source


def test_no_draws_are_looked_for_in_samples_that_workers_may_not_make(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_for(*_: object) -> None:
        raise AssertionError("the samples were searched for draws")

    monkeypatch.setattr(loaders, "sample_draw", looked_for)
    assert isinstance(asked("loader-workers", program("return torch.ones(1).cuda(), i")), Advice)
    with pytest.raises(AssertionError, match="draws"):
        asked("loader-workers", program())


def test_open_files_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[SampleCode] = []

    def held(code: SampleCode) -> Iterator[Trace]:
        found.append(code)
        yield from ()

    monkeypatch.setattr(shared_state, "held_handles", held)
    text = program("return torch.load(self.paths[i]), 'looked for once'")
    answers = [asked("loader-workers", text) for _ in range(3)]
    assert all(isinstance(each, Edits) for each in answers)
    assert len(found) == 1


def test_an_edit_of_the_call_that_builds_a_loader_gives_no_other_loader_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[Mapping[str, str]] = []

    def parse(texts: Mapping[str, str]) -> Mapping[str, Source]:
        parsed.append(texts)
        return parse_all(texts)

    monkeypatch.setattr(shared_workers, "parse_all", parse)
    assert isinstance(asked("loader-workers", program()), Edits)
    assert not parsed
    count = program(options=", num_workers=COUNT", top="COUNT = 0\n")
    assert isinstance(asked("loader-workers", count), Edits)
    assert parsed


def test_attributes_are_found_in_the_order_of_the_text() -> None:
    text = "a.rows = [1]\na.rows, b.size = x, y\nrows = 2\nc.d.rows = z\n"
    source = Source(text)
    node = next(iter(source.attributes_named("rows")))
    found = attribute_values({"train.py": source}, node)
    assert [(path, source.code(value)) for path, value in found] == [
        ("train.py", "[1]"),
        ("train.py", "x"),
        ("train.py", "z"),
    ]


def test_a_name_is_followed_to_open_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []
    of_name = open_handles._of_name

    def follow(code: SampleCode, path: str, name: cst.Name, depth: int, named: bool) -> str | None:
        known = code.without_handle.get((name, named), 0) >= depth
        followed.extend([] if known else [code.sources[path].code(name) + str(code.sources[path].span(name))])
        return of_name(code, path, name, depth, named)

    monkeypatch.setattr(open_handles, "_of_name", follow)
    names = ["paths", "a", "b", "c", "d"]
    chain = "".join(f"    {new} = {old} if {old} else {old}\n" for new, old in zip(names[1:], names, strict=False))
    text = program("return self.rows[i], i", "self.rows = paths").replace(
        "    data = Images(paths)\n", f"{chain}    data = Images(d)\n"
    )
    assert isinstance(asked("loader-workers", text), Edits)
    assert followed
    assert len(followed) == len(set(followed))


def test_what_is_bound_to_a_name_is_followed_on_through_the_program() -> None:
    read = "print(held.batches.num_workers)  # !"
    text = program(step=read).replace("    model = nn", "    kept = loader\n    held = Run(kept)\n    model = nn", 1)
    refused("loader-workers", text, "# !")
    assert isinstance(asked("loader-workers", text.replace("held = Run(kept)", "held = Run(paths)")), Edits)
