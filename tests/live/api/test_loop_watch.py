"""`diagnose.watch` and what is built on it, on loops of the test's own process."""

# mypy: disallow-subclassing-any=False
# Lightning's classes are unknown where it is not installed.

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import diagnose
from diagnose.errors import UsageError
from diagnose.model import Diagnosis

STEPS = 60
"""Four times as many are more than it takes until steps count as steady, however noisy the machine is."""


class Loop:
    """A small training loop."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(32, 32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: torch.Tensor) -> None:
        """One optimizer step."""
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        """A copy of the parameters."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def batches(count: int = 4 * STEPS) -> Iterator[torch.Tensor]:
    """The same batches each time."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 32, generator=generator)


def around_batches() -> diagnose.LoopWatch[torch.Tensor]:
    loop, watched = Loop(), diagnose.watch(batches(), steps=2, warmup=3)
    for batch in watched:
        loop.step(batch)
    return watched


def by_the_optimizer() -> diagnose.LoopWatch[Any]:
    loop = Loop()
    with diagnose.watch(steps=2, warmup=3) as watched:
        for batch in batches():
            loop.step(batch)
    return watched


def by_calls() -> diagnose.LoopWatch[Any]:
    model = nn.Linear(32, 32)
    with diagnose.watch(steps=2, warmup=3) as watched:
        for batch in batches():
            model(batch).square().mean().backward()
            watched.step()
    return watched


@pytest.mark.parametrize("watch", [around_batches, by_the_optimizer, by_calls])
def test_a_watched_loop_is_diagnosed(watch: Callable[[], diagnose.LoopWatch[Any]]) -> None:
    analysis = watch().analysis
    steps = analysis.diagnosis.steps
    assert (steps.count, steps.found_by) == (2, "profiler marks")
    assert analysis.diagnosis.accounting.total_ns == steps.median_ns
    assert analysis.profile is not None
    assert {"aten::addmm", "aten::linear"} & {row.name for row in analysis.profile.operators}


def test_watching_changes_nothing_that_is_computed() -> None:
    alone, watched = Loop(), Loop()
    for batch in batches():
        alone.step(batch)
    for batch in diagnose.watch(batches(), steps=2, warmup=3):
        watched.step(batch)
    assert all(map(torch.equal, alone.weights(), watched.weights()))


def test_nothing_of_it_stays_in_the_process() -> None:
    optimizers = __import__("torch.optim.optimizer", fromlist=["_global_optimizer_post_hooks"])
    before = list(gc.callbacks), dict(optimizers._global_optimizer_post_hooks)
    by_the_optimizer()
    assert (list(gc.callbacks), dict(optimizers._global_optimizer_post_hooks)) == before
    assert not torch.autograd.profiler._is_profiler_enabled


def test_of_two_optimizers_that_take_turns_one_counts() -> None:
    first, second = Loop(), Loop()
    with diagnose.watch(steps=2, warmup=3) as watched:
        for batch in batches(STEPS):
            first.step(batch)
            second.step(batch)
    assert len(watched._ends) == STEPS


def test_a_loop_that_is_left_early_is_diagnosed() -> None:
    loop, watched = Loop(), diagnose.watch(batches(8 * STEPS), steps=2, warmup=3)
    for number, batch in enumerate(watched):
        loop.step(batch)
        if number == 4 * STEPS:
            break
    assert watched.analysis.diagnosis.steps.count == 2


def test_a_loop_that_is_too_short_says_so() -> None:
    loop, watched = Loop(), diagnose.watch(batches(2))
    for batch in watched:
        loop.step(batch)
    (warning, *_) = watched.analysis.diagnosis.warnings
    assert warning.startswith("the loop ended after 2 steps, before any could be traced")


def test_an_exception_of_the_loop_comes_through_and_ends_the_watching() -> None:
    with pytest.raises(ZeroDivisionError), diagnose.watch(steps=2, warmup=3) as watched:
        raise ZeroDivisionError
    assert not watched.is_running


def test_the_analysis_is_asked_for_after_the_loop() -> None:
    with diagnose.watch() as watched, pytest.raises(UsageError, match="not over yet"):
        watched.analysis  # noqa: B018
    with pytest.raises(UsageError, match="watched already"):
        watched.__enter__()


def test_a_folder_that_is_named_keeps_the_recording(tmp_path: Path) -> None:
    loop = Loop()
    with diagnose.watch(steps=2, warmup=3, folder=tmp_path / "kept") as watched:
        for batch in batches():
            loop.step(batch)
    said = watched.analysis.diagnosis
    assert diagnose.analyze(tmp_path / "kept").diagnosis == said
    with pytest.raises(UsageError, match="holds a recording already"):
        diagnose.watch(folder=tmp_path / "kept").__enter__()


def test_a_recording_without_a_folder_goes_with_the_watch() -> None:
    watched = by_the_optimizer()
    folder = watched._folder
    assert folder is not None and folder.is_dir()
    del watched
    assert not folder.exists()


CELL = """
for batch in batches():
    loop.step(batch)
"""


@pytest.fixture
def shell() -> Any:
    """IPython as it runs in a terminal, with a loop to run."""
    interactive = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    shell = interactive.InteractiveShell()
    shell.run_line_magic("load_ext", "diagnose")
    shell.user_ns |= {"loop": Loop(), "batches": batches}
    return shell


def test_a_cell_of_a_notebook_is_watched(shell: Any) -> None:
    analysis = shell.run_cell_magic("diagnose", "--steps 2 --warmup 3", CELL)
    assert isinstance(analysis.diagnosis, Diagnosis)
    assert analysis.diagnosis.steps.count == 2


def test_a_cell_knows_its_lines(shell: Any) -> None:
    slow = "import time\nfor batch in batches(40):\n    time.sleep(0.002)\n    loop.step(batch)\n"
    analysis = shell.run_cell_magic("diagnose", "--warmup 3", slow)
    places = [place for finding in analysis.findings for place in finding.where]
    assert any(place.code == "time.sleep(0.002)" and place.line == 3 for place in places), analysis.text()


def test_a_cell_that_fails_shows_its_error_and_gives_nothing(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell_magic("diagnose", "", "1 / 0") is None
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_options_that_a_cell_does_not_have_are_refused(shell: Any) -> None:
    for line in ("--budget 3", "--steps many"):
        with pytest.raises(UsageError, match="%%diagnose"):
            shell.run_cell_magic("diagnose", line, CELL)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_the_callback_of_hugging_face_s_trainer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from diagnose.callbacks.huggingface import WatchCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).square().mean()}

    watching = WatchCallback(steps=2, warmup=3)
    with pytest.raises(UsageError, match="after `train"):
        watching.analysis  # noqa: B018
    options: dict[str, Any] = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=STEPS, use_cpu=True, gradient_accumulation_steps=2, **options
    )
    data = [{"x": torch.randn(32)} for _ in range(8 * STEPS)]
    Trainer(Model(), arguments, train_dataset=data, callbacks=[watching]).train()
    assert watching.analysis.diagnosis.steps.count == 2


@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
@pytest.mark.filterwarnings("ignore")
def test_the_callback_of_lightning_s_trainer(tmp_path: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from diagnose.callbacks.lightning import WatchCallback

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    watching = WatchCallback(steps=2, warmup=3)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_steps=STEPS, accelerator="cpu", callbacks=[watching], default_root_dir=tmp_path, enable_model_summary=False,
        **quiet,
    )  # fmt: skip
    data: Any = list(torch.randn(8 * STEPS, 32))
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8))
    assert watching.analysis.diagnosis.steps.count == 2
