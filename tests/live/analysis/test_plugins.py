"""Diagnosing needs the rules and the names of the fixers; what fixers are made of is not even imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from watching import LIMIT_S

from diagnose import plugins
from diagnose.cli import main
from diagnose.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


def test_the_rules_alone_are_those_of_the_whole_catalogue() -> None:
    alone, whole = plugins.load_rules(), plugins.load()
    assert alone.rules.keys() == whole.rules.keys()
    assert alone.problems == ()
    assert alone.fixers == {}


def test_a_fixer_is_known_by_the_name_of_its_file() -> None:
    alone, whole = plugins.load_rules(), plugins.load()
    assert alone.unloaded == whole.fixers.keys()
    assert all(alone.offers(name) and whole.offers(name) for name in whole.fixers)
    assert not alone.offers("no-such-fixer")


def test_analyzing_imports_nothing_that_only_fixing_needs() -> None:
    script = (
        "import sys; from diagnose.cli import main; "
        f"code = main(['analyze', {str(ROOT / 'sample_traces' / 'cpu_demo')!r}]); "
        "print(sorted({'libcst', 'torch', 'textual', 'plotly'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stdout


FIXER = """\"\"\"Does nothing.\"\"\"
from diagnose.fixer import Fixer, Gate
FIXER = Fixer({name!r}, lambda request: None, Gate.BITWISE, "compute", {relation}=({other!r},))
"""


@pytest.mark.parametrize(
    ("relation", "words"),
    [("conflicts", "the fixer conflicts with itself"), ("after", "the fixer waits for itself")],
)
def test_a_fixer_that_stands_against_itself_is_refused_and_told(tmp_path: Path, relation: str, words: str) -> None:
    for name, other in ((f"{relation}-mine", f"{relation}-mine"), (f"{relation}-theirs", "unheard-of")):
        file = tmp_path / f"{name.replace('-', '_')}.py"
        file.write_text(FIXER.format(name=name, relation=relation, other=other))
    catalogue = plugins.load(extra_fixers=tmp_path)
    assert f"{relation}-theirs" in catalogue.fixers
    assert f"{relation}-mine" not in catalogue.fixers
    assert [problem.message for problem in catalogue.problems if problem.module == f"{relation}-mine"] == [words]


ANOTHER = """\"\"\"Does nothing, but is asked to.\"\"\"
from diagnose.fixer import Fixer, Gate
FIXER = Fixer("mine", lambda request: None, Gate.BITWISE, "compute", rules=("slow-optimizer", "unheard-of"))
"""


def test_a_fixer_beside_the_project_says_which_findings_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ANOTHER)
    catalogue, plain = plugins.load(extra_fixers=tmp_path), plugins.load()
    assert catalogue.problems == ()
    assert catalogue.rules["slow-optimizer"].fixers == (*plain.rules["slow-optimizer"].fixers, "mine")
    assert [name for name, rule in catalogue.rules.items() if "mine" in rule.fixers] == ["slow-optimizer"]


def test_it_is_tried_also_where_a_rule_chooses_among_the_fixers_that_it_knows(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ANOTHER.replace("slow-optimizer", "misaligned-matmul"))
    catalogue = plugins.load(extra_fixers=tmp_path)
    rule = catalogue.rules["misaligned-matmul"]
    assert catalogue.tried_for(rule, ()) == ("mine",)
    assert catalogue.tried_for(rule, None) == rule.fixers
    assert plugins.load().tried_for(plugins.load().rules["misaligned-matmul"], ()) == ()


def test_one_for_findings_that_no_rule_makes_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ANOTHER.replace('"slow-optimizer", "unheard-of"', '"slow_optimizer",'))
    catalogue = plugins.load(extra_fixers=tmp_path)
    assert [(one.module, one.message) for one in catalogue.problems] == [
        ("mine", "no rule is called slow_optimizer: it is never tried")
    ]


@pytest.mark.parametrize("kind", ["rules", "fixers"])
def test_a_folder_that_is_not_there_is_no_empty_folder(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match=f"there is no such folder of {kind}"):
        plugins.load(**{f"extra_{kind}": tmp_path / "missing"})


def test_what_lies_beside_the_project_can_be_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(ANOTHER)
    (tmp_path / "broken.py").write_text("raise RuntimeError('unfinished')\n")
    assert main(["explain", "mine", "--fixers", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "Does nothing, but is asked to." in told.out
    assert "slow-optimizer" in told.out
    assert "broken was left out: RuntimeError: unfinished" in told.err
