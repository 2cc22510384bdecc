"""The backend `diagnose` as users meet it: what it leaves alone, its options, its report, how torch finds it."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_models import Llama, batch, compile_all, fresh, new_graphs, rewritten
from torch import Tensor
from torch.nn import functional
from watching import LIMIT_S

from diagnose import graph

__all__ = ["fresh"]
# Dynamo looks at it, and hides the warning where warnings are no errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_written_into_later_is_left_alone() -> None:
    """The operator keeps the sum for its backward pass."""

    def program(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
        total = x + branch
        normed = functional.rms_norm(total, (8,), weight, 1e-5)
        total.mul_(2.0)
        return normed + total

    inputs = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    found, graphs = new_graphs(lambda: compile_all(program)(*inputs))
    assert rewritten(graphs) == []
    torch.testing.assert_close(found, program(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("view", [lambda logits: logits, lambda logits: logits[1:]], ids=["whole", "a view"])
def test_logits_that_are_written_into_later_are_left_alone(view: Callable[[Tensor], Tensor]) -> None:
    """The operator keeps them for its backward pass; torch's own keeps the probabilities."""

    def program(x: Tensor, target: Tensor) -> Tensor:
        logits = x.sin()
        loss = functional.cross_entropy(logits, target)
        view(logits).mul_(2.0)
        return loss + logits.sum()

    x, target = torch.randn(4, 8, requires_grad=True), torch.arange(4)
    found, graphs = new_graphs(lambda: torch.autograd.grad(compile_all(program)(x, target), x))
    assert rewritten(graphs) == []
    torch.testing.assert_close(found, torch.autograd.grad(program(x, target), x))


def test_copies_pickles_and_a_second_compilation() -> None:
    model = Llama()
    inputs = batch()
    compiled = compile_all(model)
    expected = compiled(*inputs)
    torch.testing.assert_close(copy.deepcopy(compiled)(*inputs), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(*inputs), expected)
    model.compile(backend="diagnose", options={"inner": "eager", "rewrite": "all"})
    torch.testing.assert_close(model(*inputs), expected)


def test_only_some_patterns() -> None:
    options: dict[str, Any] = {"inner": "eager", "rewrite": ["rotary", "swiglu"]}
    compiled = torch.compile(Llama(), backend="diagnose", options=options)
    _, graphs = new_graphs(lambda: compiled(*batch()))
    assert rewritten(graphs) == ["rotary", "rotary", "swiglu", "swiglu"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inner": "diagnose"}, "`inner` is a backend"),
        ({"rewrite": "norms"}, "not norms"),
        ({"inner": "eager", "max_autotune": True}, "not max_autotune"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        torch.compile(Llama(), backend="diagnose", options=options)(*batch())


def test_the_report_says_what_where_and_how_much(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = torch.compile(Llama(), backend="diagnose", options={"inner": "eager", "rewrite": "all", "print": True})
    with caplog.at_level(logging.INFO, "diagnose.graph"):
        _, graphs = new_graphs(lambda: compiled(*batch()))
    text = str(graphs[0])
    assert text == caplog.messages[-1]
    assert text in capsys.readouterr().err
    assert text.splitlines()[0].endswith("(cpu, the rest by eager): 9 of 9 sites rewritten")
    (line,) = [line for line in text.splitlines() if "swiglu" in line]
    assert "graph_models.py:" in line
    assert "in blocks.0 … blocks.1 (2 times)" in line
    assert "should save 6.0 KiB, not measured on this device" in line
    assert str(graph.report()).endswith(text)


def test_torch_finds_the_backend_where_the_package_is_installed(tmp_path: Path) -> None:
    """Nothing is imported before torch asks for the name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = tmp_path / "diagnose_train-9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: diagnose-train\nVersion: 9\n")
    points = project["entry-points"]["torch_dynamo_backends"]
    lines = [f"{name} = {target}" for name, target in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines]) + "\n")
    code = (
        "import sys, torch\n"
        "assert 'diagnose' in torch._dynamo.list_backends() and 'diagnose.graph' not in sys.modules\n"
        "found = torch.compile(lambda x: x.sin(), backend='diagnose', options={'inner': 'eager'})(torch.zeros(3))\n"
        "import diagnose.graph\n"
        "print(found.tolist(), diagnose.graph.report())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=LIMIT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "[0.0, 0.0, 0.0] graph 1 (cpu, the rest by eager): 0 of 0 sites rewritten"


def test_it_is_light_in_a_users_process() -> None:
    heavy = ("textual", "libcst", "rich", "msgspec", "torch._inductor.compile_fx")
    code = f"import sys, torch, diagnose.graph; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=True
    )
    assert answer.stdout.strip() == "[]"
