"""What an expert gets on a naive GPT, line by line: each has a fixer that finds its place beside all the others."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Advice, Answer, Edits, Facts, Fixer, Site, example_request
from diagnose.model import Scalar
from diagnose.plugins import load
from diagnose.source.rewrite.line_map import LineMap

CATALOGUE = load()
SICKBAY = Path(__file__).resolve().parents[3] / "benchmarks" / "sickbay"
NAIVE = (SICKBAY / "naive_gpt" / "train.py").read_text()
EXPERT = (SICKBAY / "naive_gpt" / "expert.py").read_text()
ON_H200 = Facts(
    torch_version="2.11.0",
    device_name="NVIDIA H200",
    device_capability=(9, 0),
    matmul_precision="highest",
    autocast_dtype="none",
    cpu_count=8,
)
LOADER: dict[str, Scalar] = {
    "name": "DataLoader",
    "num_workers": 0,
    "batch_size": 16,
    "shuffle": True,
    "pin_memory": False,
    "persistent_workers": False,
    "dataset": "Tokens",
}
RECORDED: tuple[tuple[str, str, dict[str, Scalar]], ...] = (
    ("DataLoader", "loader = DataLoader(", LOADER),
    ("optimizer", "torch.optim.AdamW(", {"name": "AdamW", "foreach": False, "fused": None, "differentiable": False}),
    ("forward", "logits = model(inputs)", {"name": "GPT", "parameters": 124_000_000}),
    ("backward", "loss.backward()", {}),
    ("zero_grad", "optimizer.zero_grad()", {}),
    ("clip", "clip_grad_norm_(", {}),
)
EXPERTS_LINES = {
    "allow-tf32": 'torch.set_float32_matmul_precision("high")',
    "autocast-bf16": "            with torch.autocast(device.type, dtype=torch.bfloat16):\n"
    "                logits = model(inputs)\n"
    "                loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))\n",
    "use-sdpa": "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "fused-optimizer": "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)",
    "foreach-clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "defer-item": "running += loss.detach()",
    "loader-pin": "pin_memory=",
    "nonblocking-copies": "inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)",
    "loader-workers": "num_workers=2",
}
"""Fixer → the code that the expert's program has and the naive one lacks, and that the fixed one is to have."""
IN_ANOTHER_WAY = {"pad-vocabulary": r"\bpad\(.*64", "compile-model": r"compile\(", "native-norm": r"rms_norm\("}
"""Fixer → what the fixed program does where the expert's says it otherwise."""
NAMED = ("foreach-clip", "defer-item", *EXPERTS_LINES, *IN_ANOTHER_WAY)


class Chain:
    """A program with fix after fix in it, and its sites where their lines went."""

    def __init__(self, text: str, recorded: Sequence[tuple[str, str, dict[str, Scalar]]] = ()) -> None:
        self.text = text
        self.sites = [Site(kind, "train.py", self.line(code), arguments=given) for kind, code, given in recorded]

    def line(self, code: str) -> int:
        return next(number for number, line in enumerate(self.text.splitlines(), 1) if code in line)

    def apply(self, fixer: Fixer, setting: dict[str, Scalar] | None = None) -> Answer:
        # Where cores are short, workers are taken away.
        rules = (name for name in CATALOGUE.rules if name != "cpu-contention")
        rule = next(name for name in rules if fixer.name in CATALOGUE.rules[name].fixers)
        request = example_request(rule, self.text, sites=self.sites, facts=ON_H200)
        first = setting if setting is not None else fixer.settings(request)[0]
        answer = fixer.rewrite(replace(request, setting=first))
        if isinstance(answer, Edits):
            lines = LineMap.between({"train.py": self.text}, answer.files)
            self.sites = [replace(site, line=lines.line(site.file, site.line)) for site in self.sites]
            self.text = answer.files["train.py"]
        return answer


def in_turn(names: Sequence[str]) -> list[Fixer]:
    """As composition would ask them: by order class, what another rests on first."""
    waiting = sorted((CATALOGUE.fixers[name] for name in dict.fromkeys(names)), key=lambda fixer: fixer.order)
    found: list[Fixer] = []
    while waiting:
        ready = next(
            one for one in waiting if not any(other.name in one.after for other in waiting if other is not one)
        )
        waiting.remove(ready)
        found.append(ready)
    return found


@pytest.fixture(scope="module")
def fixed() -> str:
    """The naive GPT with everything an expert would do."""
    chain = Chain(NAIVE, RECORDED)
    for fixer in in_turn(NAMED):
        answer = chain.apply(fixer, {"num_workers": 2} if fixer.name == "loader-workers" else None)
        assert isinstance(answer, Edits), (fixer.name, answer)
    return chain.text


@pytest.mark.parametrize(("name", "code"), EXPERTS_LINES.items(), ids=EXPERTS_LINES)
def test_what_the_expert_wrote_is_there(fixed: str, name: str, code: str) -> None:
    assert code in EXPERT, name
    assert code in fixed, name
    assert name == "foreach-clip" or code not in NAIVE


@pytest.mark.parametrize(("name", "code"), IN_ANOTHER_WAY.items(), ids=IN_ANOTHER_WAY)
def test_what_the_expert_did_otherwise_is_done(fixed: str, name: str, code: str) -> None:
    assert re.search(code, fixed), name
    assert not re.search(code, NAIVE)


def test_nothing_is_read_or_looped_over_in_each_step(fixed: str) -> None:
    assert ".item()" not in fixed
    assert "for parameter in" not in fixed
    assert "masked_fill" not in fixed


def test_no_fixer_has_anything_left_to_do(fixed: str) -> None:
    chain = Chain(fixed)
    for fixer in in_turn(["foreach-clip", "defer-item", "autocast-bf16", "allow-tf32", "fused-optimizer", "use-sdpa"]):
        answer = chain.apply(fixer)
        assert not isinstance(answer, Edits), (fixer.name, answer)


def printed(text: str, folder: Path, name: str, *words: str) -> list[float]:
    """The losses that a program prints."""
    program = folder / name
    program.write_text(text)
    variables = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*LIGHT_PYTHON, str(program), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=variables,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [float(loss) for loss in re.findall(r"loss\s+([\d.]+)", ran.stdout)]


TINY = tuple("--steps 2 --batch 2 --length 16 --vocabulary 101 --width 32 --heads 2 --layers 2 --log-every 1".split())  # noqa: SIM905 - as one types it


def test_the_fixed_program_trains_as_the_naive_one_does(fixed: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before, after = printed(NAIVE, tmp_path, "naive.py", *TINY), printed(fixed, tmp_path, "fixed.py", *TINY)
    assert len(before) == 2
    assert after == pytest.approx(before, rel=0.02)  # bfloat16 has 8 bits


def of_sickbay(name: str, recorded: Sequence[tuple[str, str, dict[str, Scalar]]] = ()) -> Chain:
    folder = SICKBAY / name
    file = next(path for path in (folder / "train.py", folder / "healthy.py") if path.exists())
    return Chain(file.read_text(), recorded)


@pytest.mark.parametrize("names", [("allow-tf32",), ("autocast-bf16", "allow-tf32")])
def test_the_sick_bays_products_in_float32_get_their_tensor_cores(names: Sequence[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    chain = of_sickbay("fp32_matmul")
    before = chain.text
    for fixer in in_turn(names):
        assert isinstance(chain.apply(fixer), Edits)
    assert 'torch.set_float32_matmul_precision("high")' in (SICKBAY / "fp32_matmul" / "healthy.py").read_text()
    assert 'torch.set_float32_matmul_precision("high")' in chain.text
    wrapped = "        with torch.autocast(device.type, dtype=torch.bfloat16):\n            loss = F.mse_loss("
    assert (wrapped in chain.text) == ("autocast-bf16" in names)
    words = ("--tiny", "--steps", "20")
    losses = [printed(text, tmp_path, "train.py", *words) for text in (before, chain.text)]
    assert losses[0]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_batch_that_nothing_accumulates_is_left_to_people() -> None:
    answer = of_sickbay("small_batch").apply(CATALOGUE.fixers["bigger-microbatch"])
    assert isinstance(answer, Advice)
    assert "changes the training" in answer.text


def test_a_program_in_order_is_left_alone() -> None:
    built: dict[str, Scalar] = {"name": "AdamW", "fused": True, "foreach": None, "differentiable": False}
    chain = of_sickbay("odd_accumulation", [("optimizer", "torch.optim.AdamW(", built)])
    for name in ("bigger-microbatch", "fused-optimizer", "zero-grad-none", "foreach-clip", "autocast-bf16"):
        assert not isinstance(chain.apply(CATALOGUE.fixers[name]), Edits), name
