"""Fixers on programs like those that many start from: a configurable GPT, a trainer with callbacks, options in YAML.

What an H200 would record is given as sites and facts, so that the branches for CUDA are seen as well.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from watching import LIMIT_S

from diagnose.fixer import Advice, Answer, Edits, Facts, Request, Site, example_request
from diagnose.model import Place, Scalar
from diagnose.plugins import load

FIXERS = load().fixers
ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).resolve().parents[2] / "programs"
ON_H200 = Facts(
    torch_version="2.11.0",
    device_name="NVIDIA H200",
    device_capability=(9, 0),
    matmul_precision="highest",
    autocast_dtype="none",
    cudnn_benchmark=False,
    cudnn_deterministic=False,
    cpu_count=16,
)
ADAM: dict[str, Scalar] = {"name": "AdamW", "foreach": None, "fused": False, "differentiable": False}
LOADER: dict[str, Scalar] = {"name": "DataLoader", "num_workers": 0, "pin_memory": False, "shuffle": True}


class Case:
    """A program as a request sees it."""

    def __init__(self, name: str, entry: str = "train.py", words: tuple[str, ...] = ()) -> None:
        folder = PROGRAMS / name
        files = [path for path in folder.rglob("*") if path.suffix in {".py", ".yaml"}]
        self.texts = {str(path.relative_to(folder)): path.read_text() for path in files}
        self.entry, self.words, self.sites = entry, words, list[Site]()

    def line(self, path: str, code: str) -> int:
        return next(number for number, line in enumerate(self.texts[path].splitlines(), 1) if code in line)

    def built(self, kind: str, path: str, code: str, arguments: dict[str, Scalar] | None = None) -> None:
        self.sites.append(Site(kind, path, self.line(path, code), arguments=arguments or {}))

    def asked(self, fixer: str, rule: str, path: str, code: str, **setting: Scalar) -> Answer:
        request: Request = example_request(rule, "", sites=self.sites, facts=ON_H200, setting=setting)
        configs = {name: text for name, text in self.texts.items() if name.endswith(".yaml")}
        sources = {name: text for name, text in self.texts.items() if name not in configs}
        finding = replace(request.finding, where=(Place(path, self.line(path, code)),))
        asked = replace(request, finding=finding, sources=sources, configs=configs, entry=self.entry)
        return FIXERS[fixer].rewrite(replace(asked, words=(self.entry, *self.words)))

    def changed(self, answer: Answer) -> list[str]:
        """The lines that go and come."""
        assert isinstance(answer, Edits), answer
        lines: list[str] = []
        for path, text in answer.files.items():
            compared = difflib.unified_diff(self.texts[path].splitlines(), text.splitlines(), n=0, lineterm="")
            lines += [line for line in list(compared)[2:] if not line.startswith("@@")]
        return lines


def gpt(*words: str) -> Case:
    case = Case("configured_gpt", words=words)
    case.built("optimizer", "model.py", "torch.optim.AdamW(", {**ADAM, "fused": True})
    case.built("backward", "train.py", "scaler.scale(loss).backward()")
    case.built("GradScaler", "train.py", "GradScaler(", {"enabled": False})
    return case


def test_a_word_that_keeps_a_switch_off_is_named() -> None:
    answer = gpt("--dtype=float32").asked("autocast-bf16", "fp32-matmul", "train.py", "logits, loss = model(X, Y)")
    assert isinstance(answer, Advice), answer
    assert "`--dtype=float32`" in answer.text


@pytest.mark.parametrize("word", ["config/slow.py", "--compile=False"])
def test_where_a_switch_would_change_the_keys_of_a_checkpoint_the_model_is_compiled_in_place(word: str) -> None:
    case = gpt(word)
    answer = case.asked("compile-model", "launch-bound", "train.py", "logits, loss = model(X, Y)")
    assert case.changed(answer) == ["+else:", "+    model.compile()"]


def test_a_switch_that_a_config_file_turned_off_is_turned_on_there() -> None:
    case = gpt("config/slow.py")
    answer = case.asked("autocast-bf16", "fp32-matmul", "train.py", "logits, loss = model(X, Y)")
    assert case.changed(answer) == ['-dtype = "float32"', '+dtype = "bfloat16"']
    assert isinstance(answer, Edits)
    assert list(answer.files) == ["config/slow.py"]


@pytest.mark.parametrize(
    ("fixer", "rule"),
    [
        ("nonblocking-copies", "pageable-copies"),
        ("fused-optimizer", "slow-optimizer"),
        ("use-sdpa", "unfused-attention"),
        ("defer-item", "host-sync"),
        ("zero-grad-none", "slow-optimizer"),
    ],
)
def test_what_a_program_does_well_already_is_left_alone(fixer: str, rule: str) -> None:
    answer = gpt().asked(fixer, rule, "train.py", "x, y = x.pin_memory()")
    assert not isinstance(answer, Edits), answer


def test_graphs_are_recorded_of_what_is_compiled_and_of_nothing_else() -> None:
    assert gpt("--compile=False").asked("cuda-graphs", "launch-bound", "train.py", "logits, loss = model") is None
    assert gpt("config/slow.py").asked("cuda-graphs", "launch-bound", "train.py", "logits, loss = model") is None
    case = gpt()
    lines = case.changed(case.asked("cuda-graphs", "launch-bound", "train.py", "logits, loss = model"))
    assert lines[1:] == ['+    model = torch.compile(model, mode="reduce-overhead")']


def test_batches_that_the_program_makes_itself_are_made_ahead_by_hand() -> None:
    answer = gpt().asked("loader-workers", "input-bound", "train.py", "x, y = x.pin_memory()")
    assert isinstance(answer, Advice), answer
    line = gpt().line("train.py", "x, y = x.pin_memory()")
    assert f"train.py:{line} makes each batch in the training thread" in answer.text
    assert gpt().asked("loader-workers", "pageable-copies", "train.py", "x, y = x.pin_memory()") is None


def trainer() -> Case:
    case = Case("callback_trainer", "main.py")
    case.built("DataLoader", "trainer.py", "loader = DataLoader(", LOADER)
    case.built("optimizer", "net.py", "torch.optim.AdamW(", ADAM)
    case.built("forward", "trainer.py", "_, self.loss = model(x, y)", {"name": "Digits"})
    case.built("backward", "trainer.py", "self.loss.backward()")
    return case


@pytest.mark.parametrize(
    ("fixer", "rule", "setting", "lines"),
    [
        ("compile-model", "launch-bound", {"compile": "whole"}, ["+    model.compile()"]),
        (
            "compile-model",
            "launch-bound",
            {"compile": "blocks"},
            ["+    for block in model.layers:", "+        block.compile()"],
        ),
        (
            "autocast-bf16",
            "fp32-matmul",
            {},
            [
                "-            _, self.loss = model(x, y)",
                '+            with torch.autocast("cuda", dtype=torch.bfloat16):',
                "+                _, self.loss = model(x, y)",
            ],
        ),
        (
            "loader-workers",
            "input-bound",
            {"num_workers": 4},
            ["-        config.num_workers = 0", "+        config.num_workers = 4"],
        ),
    ],
    ids=["compile", "blocks", "autocast", "workers"],
)
def test_a_trainer_that_keeps_its_model_is_edited_where_things_are_decided(
    fixer: str, rule: str, setting: dict[str, Scalar], lines: list[str]
) -> None:
    case = trainer()
    changed = case.changed(case.asked(fixer, rule, "trainer.py", "batch = [t.to", **setting))
    assert [line for line in changed if "pin_memory" not in line] == lines


def test_the_model_is_compiled_inside_the_main_guard_before_it_is_trained() -> None:
    answer = trainer().asked("compile-model", "launch-bound", "trainer.py", "batch = [t.to")
    assert isinstance(answer, Edits)
    text = answer.files["main.py"]
    assert "    model = Digits()\n    model.compile()\n" in text
    assert text.index("model.compile()") < text.index("trainer.run()")


@pytest.mark.parametrize(
    ("fixer", "rule", "lines"),
    [
        ("fused-optimizer", "slow-optimizer", ["-  fused: false", "+  fused: true"]),
        ("autocast-bf16", "fp32-matmul", ["-  amp: false", "+  amp: true"]),
        ("compile-model", "launch-bound", ["-  compile: false", "+  compile: true"]),
        ("loader-pin", "pageable-copies", ["-  pin_memory: false", "+  pin_memory: true"]),
    ],
)
def test_what_a_yaml_file_decides_is_decided_there(fixer: str, rule: str, lines: list[str]) -> None:
    case = Case("kept_in_yaml")
    case.built("DataLoader", "train.py", "loader = DataLoader(", LOADER)
    case.built("optimizer", "train.py", "torch.optim.AdamW(", ADAM)
    assert case.changed(case.asked(fixer, rule, "train.py", "x, y = x.to(device)")) == lines


def test_a_number_that_a_method_returns_to_each_step_is_advice() -> None:
    text = (
        "class Trainer:\n    def run_batch(self, x):\n        loss = self.model(x).mean()\n        loss.backward()\n"
        "        self.optimizer.step()\n        return loss.item()\n\n    def run(self):\n        total = 0.0\n"
        "        for x in self.loader:\n            total += self.run_batch(x)\n        print(total)\n"
    )
    answer = FIXERS["defer-item"].rewrite(example_request("host-sync", text, lines=[6], facts=ON_H200))
    assert isinstance(answer, Advice), answer
    assert "train.py:6 returns a number to every step" in answer.text


READ_BACK = """import torch
from torch import nn

device = 'cuda' if torch.cuda.is_available() else 'cpu'
if wide:
    model = nn.Linear(9, 99).to(device)
else:
    model = nn.Linear(9, 9).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def train():
    for x in batches:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()


train()
model = torch.load('best.pt')
"""


def test_a_model_read_back_after_training_is_not_where_it_is_built() -> None:
    request = example_request("launch-bound", READ_BACK, facts=ON_H200, setting={"compile": "whole"})
    answer = FIXERS["compile-model"].rewrite(request)
    assert isinstance(answer, Edits)
    assert "    model = nn.Linear(9, 9).to(device)\nmodel.compile()\n" in answer.files["train.py"]


def test_a_global_device_names_the_type_for_autocast() -> None:
    answer = FIXERS["autocast-bf16"].rewrite(example_request("fp32-matmul", READ_BACK, facts=ON_H200))
    assert isinstance(answer, Edits)
    assert "with torch.autocast(device, dtype=torch.bfloat16):" in answer.files["train.py"]


def test_weights_are_drawn_before_they_are_laid_out() -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.conv = nn.Conv2d(3, 8, 3)\n\n    def forward(self, x):\n"
        "        return self.conv(x)\n\n\nnet = Net().to('cuda')\nnet.apply(draw)\n"
        "for x in batches:\n    net(x).mean().backward()\n"
    )
    answer = FIXERS["channels-last"].rewrite(example_request("layout-transposes", text, facts=ON_H200))
    assert isinstance(answer, Edits)
    assert "net.apply(draw)\nnet.to(memory_format=torch.channels_last)\n" in answer.files["train.py"]


def test_steps_are_found_between_evaluations_and_checkpoints(tmp_path: Path) -> None:
    program = tmp_path / "gpt"
    shutil.copytree(PROGRAMS / "configured_gpt", program)
    (program / "data").mkdir()
    for split in ("train", "val"):
        (program / "data" / f"{split}.bin").write_bytes(array("H", [at * at % 61 for at in range(2000)]).tobytes())
    command = [
        sys.executable,
        "-m",
        "diagnose",
        "run",
        "--plain",
        "--stop-after-trace",
        "--warmup",
        "2",
        "--steps",
        "2",
    ]
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*command, "train.py", "config/slow.py", "--max_iters=600", "--eval_interval=4"],
        cwd=program,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "median of 2 steps" in done.stdout
    assert (program / "out" / "ckpt.pt").exists()
