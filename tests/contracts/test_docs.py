"""What README and CONTRIBUTING show as commands works as shown, in the order shown."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_S

from diagnose import analyze, plugins
from diagnose.cli import main, screen_picture
from diagnose.cli.reference_files import pages
from diagnose.cli.reference_page import reference_page
from diagnose.collect.experiments import load_probes
from diagnose.model import Decision, Interval, Severity, Verdict
from diagnose.report.export import contract
from diagnose.report.style.vocabulary import CLASSES
from diagnose.session import State
from diagnose.tui.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
CI = (ROOT / "docs" / "continuous-integration.md").read_text()
FIXING = (ROOT / "docs" / "fixing.md").read_text()
READING = (ROOT / "docs" / "reading.md").read_text()
PROBES = (ROOT / "docs" / "probes.md").read_text()
TUTORIAL, INSTALL, LAUNCHERS, AMD = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("tutorial", "install", "launchers", "amd")
)
SCREEN = (ROOT / "docs" / "screen.md").read_text()
WATCHING = (ROOT / "docs" / "watching.md").read_text()
RULE_FILE, FIXER_FILE = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)

PROGRAM = f"""
{LIGHT_TORCH}
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(256, 256)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(400):
    loss = model(torch.randn(64, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

NOT_RUN = "not run by a test"
NEEDS_A_TERMINAL = ("diagnose view",)
TESTED_ELSEWHERE = {
    "diagnose fix train.py": "tests/live/compose/test_fix.py",
    "diagnose fix --budget 1h train.py": "tests/unit/compose/test_compose.py",
    "diagnose fix --only allow-tf32,use-sdpa train.py": "tests/unit/compose/test_compose_dry_run.py",
    "diagnose fix --skip compile-model train.py": "tests/unit/compose/test_compose_dry_run.py",
    "diagnose fix --allow training train.py": "tests/unit/compose/test_compose.py",
    "diagnose fix --json --budget 10m train.py": "tests/live/compose/test_fix.py",
    "diagnose check --all train.py": "tests/live/cli/test_cli_check.py",
    "diagnose apply": "tests/unit/cli/test_apply.py",
    "diagnose demo --keep demo": "tests/live/cli/test_docs_launchers.py",
    "diagnose run -- torchrun --nproc-per-node 2 train.py": "tests/live/cli/test_docs_launchers.py",
    "diagnose run -- accelerate launch --num_processes 1 --cpu train.py": "tests/live/cli/test_docs_launchers.py",
    "diagnose apply --dry-run": "tests/unit/cli/test_apply.py",
    "diagnose apply --only use-sdpa": "tests/unit/cli/test_apply_some.py",
    "diagnose apply --without compile-model": "tests/unit/cli/test_apply_some.py",
    "diagnose revert": "tests/unit/cli/test_apply.py",
    "diagnose report": "tests/unit/report/test_report_cli.py",
    "diagnose report --checklist": "tests/unit/report/terminal/test_report_checklist.py",
    "diagnose report -o report.html": "tests/unit/report/test_report_cli.py",
    **dict.fromkeys(
        (
            "diagnose check-pr HEAD~1 HEAD train.py",
            "diagnose check-pr --format github --fail-on regression HEAD~1 HEAD train.py",
            "diagnose check-pr --format sarif HEAD~1 . train.py",
        ),
        "tests/live/cli/test_cli_check_pr.py",
    ),
}


def commands(text: str) -> list[str]:
    """The lines of the shell blocks, without their comments, but for those that say that no test runs them."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    said = (line for block in blocks for line in block.splitlines() if NOT_RUN not in line)
    lines = (line.split("#")[0].strip() for line in said)
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name."""
    path = tmp_path_factory.mktemp("readme")
    (path / "train.py").write_text(PROGRAM)
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 1000}
    events = [mark | {"name": f"ProfilerStep#{step}", "ts": 1000 * step} for step in range(4)]
    events += [mark | {"cat": "cpu_op", "name": "aten::mm", "ts": 1000 * step + 20, "dur": 900} for step in range(4)]
    with gzip.open(path / "trace.json.gz", "wt") as file:
        json.dump({"schemaVersion": 1, "traceEvents": events}, file)
    for kind, name, text in (("my_rules", "memory_sets", RULE_FILE), ("my_fixers", "zero_grad_none", FIXER_FILE)):
        (path / kind).mkdir()
        (path / kind / f"{name}.py").write_text(text)
    return path


TEXTS = (README, CONTRIBUTING, CI, FIXING, READING, PROBES, SCREEN, WATCHING, TUTORIAL, INSTALL, LAUNCHERS, AMD)
ALL = list(dict.fromkeys(line for text in TEXTS for line in commands(text)))
RUN_HERE = [line for line in ALL if line.startswith("diagnose ") and line not in TESTED_ELSEWHERE]


STARTS_PROGRAMS = (
    "diagnose run",
    "diagnose watch",
    "diagnose fix",
    "diagnose check",
    "diagnose probe",
    "diagnose calibrate",
)
FURTHER = (
    "diagnose check --json",
    "diagnose fix --dry-run",
    "diagnose probe --json",
    "diagnose probe cached-input",
    "diagnose run --",
    "diagnose watch --",
)
"""Of what starts programs: further options of commands that are run here, each with tests of its own."""
ANSWERED_AT_ONCE = [line for line in RUN_HERE if not line.startswith((*NEEDS_A_TERMINAL, *STARTS_PROGRAMS))]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.nightly if line.startswith(FURTHER) else ())
        for line in RUN_HERE
        if line.startswith(STARTS_PROGRAMS)
    ],
)
def test_a_command_of_the_docs_that_starts_programs_does_its_work(folder: Path, line: str) -> None:
    words = [sys.executable, "-m", *shlex.split(line)]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr.startswith("wrote ")


@pytest.mark.parametrize("line", ANSWERED_AT_ONCE)
def test_a_command_of_the_docs_does_its_work(
    folder: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    code = main(shlex.split(line)[1:])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert said.out or said.err.startswith("wrote ")


@pytest.mark.parametrize("line", [line for line in RUN_HERE if line.startswith(NEEDS_A_TERMINAL)])
def test_a_screen_of_the_docs_says_that_it_needs_a_terminal(folder: Path, line: str) -> None:
    words = [sys.executable, "-m", *shlex.split(line)]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "terminal" in done.stderr


def test_commands_that_are_tested_elsewhere_are_in_the_docs_and_the_tests_exist() -> None:
    assert set(TESTED_ELSEWHERE) <= set(ALL)
    assert all((ROOT / path).exists() for path in TESTED_ELSEWHERE.values())


def test_the_fields_of_a_run_in_json_are_those_that_the_docs_list() -> None:
    listed = re.findall(r"^\| (`.*?`) \|", CI.split("| field | holds |")[1], re.MULTILINE)
    assert [name for cell in listed for name in re.findall("`(.+?)`", cell)] == list(contract.to_object(State()))
    paragraph = CI.split("A verdict has ")[1].split("\n\n")[0]
    told = set(re.findall("`(.+?)`", paragraph))
    names = {field.name for kind in (Verdict, Interval) for field in fields(kind)}
    assert names <= told
    assert told - names == {"passed", "null", Decision.NO_CHANGE.value}


@pytest.mark.parametrize("page", [TUTORIAL, INSTALL, LAUNCHERS, AMD], ids=["tutorial", "install", "launchers", "amd"])
def test_every_command_of_a_page_is_run_or_says_that_it_is_not(page: str) -> None:
    assert commands(page)
    assert [line for line in commands(page) if line not in RUN_HERE and line not in TESTED_ELSEWHERE] == []


def test_the_tutorial_quotes_the_report_of_the_recording_that_it_names() -> None:
    quoted = TUTORIAL.split("```text\n")[1].split("```")[0]
    assert quoted in analyze(ROOT / "sample_traces" / "cpu_demo").text(width=100)


def test_make_targets_of_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [line.split()[1] for line in ALL if line.startswith("make ")]
    assert {"demo", "test"} <= set(targets)
    assert [target for target in targets if not re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)] == []


def test_the_first_screen_has_two_commands_and_a_picture_that_is_there() -> None:
    first = README.split("## ")[0]
    assert commands(first) == ["make demo", "make test"]
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", first)
    assert (ROOT / picture).exists()


def test_the_picture_is_of_the_output_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make picture` makes it anew."""
    monkeypatch.chdir(ROOT)
    made = tmp_path / "screen.svg"
    assert screen_picture.main(["sample_traces/h200_naive_gpt", str(made), "--size", "120x36"]) == 0
    assert made.read_text() == (ROOT / "docs" / "screen.svg").read_text()


def test_the_readme_is_read_on_two_screens() -> None:
    assert len(README.splitlines()) <= 80


def test_the_reference_of_rules_and_fixers_is_that_of_the_code() -> None:
    """`make reference` writes it anew."""
    assert reference_page(plugins.load()) == (ROOT / "docs" / "rules-and-fixers.md").read_text()


def test_every_probe_is_in_its_table_with_the_rules_it_settles() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PROBES, re.MULTILINE))
    for probe in load_probes().values():
        assert all(f"`{rule}`" in rows[probe.name] for rule in (*probe.measures, *probe.bounds)), probe.name


def test_the_generated_pages_are_those_of_the_code() -> None:
    """`make reference` writes them anew."""
    folder = ROOT / "docs" / "reference"
    assert {path.name: path.read_text() for path in folder.iterdir()} == pages()


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: `pip install -e '.[docs]'`")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ)
    assert (built.returncode, built.stderr) == (0, "")
    assert (tmp_path / "site" / "reference" / "commands.html").is_file()


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert named == there | {"index.md"}


def test_every_verdict_is_explained() -> None:
    assert all(f"| {decision} |" in FIXING for decision in Decision)


def test_every_word_of_the_bar_is_explained() -> None:
    table = READING[READING.index("## Words of the bar") : READING.index("## When nothing comes")].lower()
    exposed = ("exposed communication", "exposed copies")  # of which the text below the table speaks
    assert [look.label for look in CLASSES.values() if look.label.lower() not in table] == list(exposed)


def test_the_shares_of_severities_are_the_engine_s() -> None:
    for severity, share in ((Severity.HIGH, 0.10), (Severity.MEDIUM, 0.05), (Severity.LOW, 0.02)):
        assert Severity.of_share(share) is severity
        assert Severity.of_share(share - 1e-9) is not severity
        assert re.search(rf"\*\*{severity}\*\*: {100 * share:.0f} %", READING)


def test_the_keys_of_the_screen_are_those_that_the_docs_list() -> None:
    listed = dict(re.findall(r"^\| `(.)` \| (.*) \|$", SCREEN, re.MULTILINE))
    assert listed == {command.shown: command.about for command in COMMANDS}


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []
