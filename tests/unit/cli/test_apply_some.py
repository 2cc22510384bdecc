"""Some of a run's kept fixes without the others: `diagnose apply --only` and `--without`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from composing import SOURCE, Stage, finding, fixer
from test_apply import typed

from diagnose import plugins
from diagnose.compose.proposals import candidates
from diagnose.compose.stack import stack_store
from diagnose.errors import InputError, PatchConflict, UsageError
from diagnose.fixer import Edits
from diagnose.model import Decision
from diagnose.program import patch

FIXER = '''"""{name}.

*What it changes*: a line. *Why it helps*: it does not. *Fix safety*: none is needed.
"""

from diagnose.fixer import Answer, Edits, Fixer, Gate, Request


def rewrite(request: Request) -> Answer:
    (path,) = (path for path in request.sources if path.endswith("train.py"))
    text = request.sources[path]
    if {old!r} not in text:
        return None
    return Edits({{path: text.replace({old!r}, {new!r}), **{more}}}, "a line")


FIXER = Fixer("{name}", rewrite, Gate.BITWISE, "compute")
'''
SHIM = "{str(path).replace('train.py', 'shim.py'): 'ready = True\\n'}"
WRITTEN = {
    "new-loader": ("loader = 1", "loader = 10", SHIM),
    "no-item": ("loss = 2", "loss = 20", "{}"),
    "on-top": ("loader = 10", "loader = 10  # and more", "{}"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder whose run kept three fixes; the third builds on the first, which brings a file of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    folder = tmp_path / "own"
    folder.mkdir()
    for name, (old, new, more) in WRITTEN.items():
        text = FIXER.format(name=name, old=old, new=new, more=more)
        (folder / f"{name.replace('-', '_')}.py").write_text(text)
    fixers = plugins.load(None, folder).fixers
    findings = [finding(name, 9 - at, name) for at, name in enumerate(WRITTEN)]
    decisions = dict.fromkeys(WRITTEN, Decision.KEPT)
    outcome = Stage(tmp_path, [fixers[name] for name in WRITTEN], findings, decisions).run()
    assert outcome.patch is not None
    assert outcome.stack is not None
    kept = tmp_path / ".diagnose" / "runs" / "one"
    patch.store(outcome.patch, kept)
    stack_store.store(outcome.stack, kept)
    return kept


def test_one_fix_is_written_alone_and_taken_back(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("apply", "--only", "no-item", "--fixers", "own")
    assert Path("train.py").read_text() == SOURCE.replace("loss = 2", "loss = 20")
    assert not Path("shim.py").exists()
    said = capsys.readouterr().err
    assert "leaves out new-loader, on-top" in said
    assert "not this selection: `diagnose fix --only no-item …` would" in said
    typed("revert")
    assert Path("train.py").read_text() == SOURCE
    assert patch.applied_at(run) is None


def test_all_but_some_bring_their_new_file_along(run: Path) -> None:
    typed("apply", run.name, "--without", "no-item", "--fixers", "own")
    assert Path("train.py").read_text() == SOURCE.replace("loader = 1", "loader = 10  # and more")
    assert Path("shim.py").read_text() == "ready = True\n"
    typed("revert")
    assert not Path("shim.py").exists()


def test_a_fix_that_builds_on_another_is_not_written_without_it(run: Path) -> None:
    assert run.exists()
    with pytest.raises(InputError, match="on-top builds on new-loader: take both, or neither"):
        typed("apply", "--only", "on-top,no-item", "--fixers", "own")
    assert Path("train.py").read_text() == SOURCE


def test_all_of_them_by_name_are_the_measured_patch(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("apply", "--only", "on-top,no-item,new-loader", "--fixers", "own", "--json")
    printed = capsys.readouterr()
    assert json.loads(printed.out)["from"].endswith(run.name)
    assert "leaves out" not in printed.err


def test_a_dry_run_of_some_shows_their_diff_and_writes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("apply", run.name, "--only", "no-item", "--fixers", "own", "--dry-run")
    shown = capsys.readouterr().out
    assert "+loss = 20" in shown
    assert "loader = 10" not in shown
    assert Path("train.py").read_text() == SOURCE
    assert not (run.parent.parent / "applied").exists()


def test_a_selection_does_not_go_on_top_of_another(run: Path) -> None:
    typed("apply", "--only", "no-item", "--fixers", "own")
    (applied,) = Path(".diagnose/applied").iterdir()
    for words in (["--only", "new-loader"], []):
        with pytest.raises(PatchConflict, match=f"`diagnose revert {applied.name}` takes it back first"):
            typed("apply", run.name, *words, "--fixers", "own")
    typed("revert", applied.name)
    assert Path("train.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "no-itme"], "did you mean no-item"),
        (["--only", "use-sdpa"], "it kept new-loader, no-item, on-top"),
        (["--without", "new-loader,no-item,on-top"], "leaves no fix"),
    ],
)
def test_names_that_mean_no_kept_fix_are_refused(run: Path, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        typed("apply", run.name, *words, "--fixers", "own")


def test_a_fixer_that_changed_since_takes_nothing_apart(run: Path) -> None:
    fixers = plugins.load(None, Path("own")).fixers
    fixers["no-item"] = fixer("no-item", lambda _request: Edits({str(Path("train.py").resolve()): "else"}, "other"))
    with pytest.raises(InputError, match="cannot be taken apart"):
        stack_store.leave_out(run, patch.load(run), ["on-top"], fixers)
    with pytest.raises(InputError, match="name its folder with --fixers"):
        typed("apply", run.name, "--only", "no-item")
    assert Path("train.py").read_text() == SOURCE


def test_a_run_of_an_earlier_version_says_that_it_is_one_piece(run: Path) -> None:
    (run / stack_store.STACK).unlink()
    with pytest.raises(InputError, match="only its whole patch can be applied"):
        typed("apply", run.name, "--only", "no-item", "--fixers", "own")


def test_an_edit_made_since_is_kept_and_the_way_to_merge_is_named(run: Path) -> None:
    Path("train.py").write_text(f"# mine\n{SOURCE}")
    with pytest.raises(PatchConflict, match=r"merge it with your edit: git apply .*one/patch\.diff"):
        typed("apply", run.name)
    assert Path("train.py").read_text() == f"# mine\n{SOURCE}"


def test_an_edit_made_after_applying_is_kept_and_the_way_to_take_the_fix_out_is_named(run: Path) -> None:
    typed("apply", run.name)
    text = f"# mine\n{Path('train.py').read_text()}"
    Path("train.py").write_text(text)
    with pytest.raises(PatchConflict, match=r"keep your edit: git apply -R .*one/patch\.diff"):
        typed("revert")
    assert Path("train.py").read_text() == text
