"""The numerics gates, on a real little program and on fixes that are wrong on purpose."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_NS

from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.process_group import Groups

PROGRAM = f"""
{LIGHT_TORCH}
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
data, labels = torch.randn(64, 12), torch.randint(0, 4, (64,))
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
order = list(range(0, 64, 8))
for step in range(100_000):
    at = order[step % 8]
    x, y = data[at : at + 8], labels[at : at + 8]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""

OF_OTHER_LAYERS = {
    "convolutions with a bias": ("nn.Linear(12, 32)", "nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 32, 12), nn.Flatten()"),
    "a recurrent network of numbers": ("nn.Linear(12, 32)", "nn.Unflatten(1, (4, 3)), Last(3, 32, batch_first=True)"),
}
LAST_STATE = """
class Last(nn.GRU):
    def forward(self, x):
        return super().forward(x, x.new_zeros(1, len(x), 32))[0][:, -1]
torch.set_num_threads(1)"""
TO_TEN_BITS = """
def narrow(t):
    raw = t.detach().view(torch.int32)
    return t + (((raw + 0xFFF + ((raw >> 13) & 1)) & ~0x1FFF).view(torch.float32) - t.detach())
class Narrow(nn.Linear):
    def forward(self, x):
        return F.linear(narrow(x), narrow(self.weight), self.bias)
nn.Linear = Narrow
torch.set_num_threads(1)"""

RIGHT = {
    "loss.item() moved out": ("    optimizer.step()", "    optimizer.step()\n    seen = loss.detach()"),
    "what compiling wraps the model in": (
        "optimizer = torch",
        "model = torch.compile(model, backend='eager')\noptimizer = torch",
    ),
    "the same loss, written out": (
        "F.cross_entropy(model(x), y)",
        "-(torch.log_softmax(model(x), 1)[torch.arange(8), y]).mean()",
    ),
}
WRONG = {
    "a wrong scale": ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y) * 1.001"),
    "a dropped gradient": ("    optimizer.step()", "    model[0].bias.grad = None\n    optimizer.step()"),
    "a zeroed gradient": ("    optimizer.step()", "    model[4].bias.grad.zero_()\n    optimizer.step()"),
    "skipped samples": ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x)[:7], y[:7])"),
    "a changed order": ("order = list(range(0, 64, 8))", "order = list(range(56, -8, -8))"),
    "a stale buffer": ("    optimizer.step()", "    optimizer.step()\n    model[1].running_mean.zero_()"),
    "a loss that is NaN": ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y) * float('nan')"),
}

NOT_BITWISE = {
    "every other batch dropped": ("order[step % 8]", "order[2 * step % 8]", "loss backward 0 of step 2 differs"),
    "other dropout": (
        "    optimizer.zero_grad()",
        "    torch.rand(3)\n    optimizer.zero_grad()",
        "loss backward 0 of step 1 differs",
    ),
    "a static input that is not refilled": (
        "    optimizer.zero_grad()",
        "    if step == 0: kept = x\n    x = kept\n    optimizer.zero_grad()",
        "loss backward 0 of step 2 differs",
    ),
    "statistics that are not updated": (
        "    loss.backward()",
        "    model[1].track_running_stats = False\n    loss.backward()",
        "buffer BatchNorm1d 0 running_mean of step 2 differs",
    ),
    "a parameter left out of the optimizer": (
        "model.parameters()",
        "[p for p in model.parameters() if p is not model[4].bias]",
        "gradient optimizer 0 group 0 parameter 5 update 0 of step 1 is missing",
    ),
    "a detached branch": (
        "model(x)",
        "model[4](model[:4](x).detach())",
        "gradient optimizer 0 group 0 parameter 0 update 0 of step 1 is missing",
    ),
    "accumulation that is off by one": (
        "    optimizer.step()",
        "    if step % 2: continue\n    optimizer.step()",
        "loss backward 1 of step 2 is new",
    ),
    "random numbers of the next epoch": (
        "    optimizer.step()",
        "    optimizer.step()\n    import random\n    random.shuffle([1, 2, 3])",
        "random numbers of Python's random advance differently from step 2 on",
    ),
    "a checkpoint under other names": (
        "optimizer = torch",
        "model = nn.Sequential(model)\noptimizer = torch",
        "a checkpoint has no 0.weight any more",
    ),
}
"""With what the gate says of it."""
WRONG_EPSILON = ("lr=1e-3", "lr=1e-3, eps=1e-9")

Check = Callable[..., GateResult]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Runs a gate on the program and on the program with one text replaced; what was captured is kept."""
    room = tmp_path_factory.mktemp("gates")
    placed: dict[str, Program] = {}

    def place(text: str) -> Program:
        if text not in placed:
            folder = room / f"program{len(placed)}"
            folder.mkdir()
            (folder / "train.py").write_text(text)
            placed[text] = Program.parse(["train.py"], cwd=folder)
        return placed[text]

    with Groups() as groups:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        keeper = Gatekeeper(Workplace(groups, room / "work", sys.executable, lambda _: environment), LIMIT_NS)

        def run(gate: Gate, old: str, new: str, rounds_to: str | None = None, program: str = PROGRAM) -> GateResult:
            assert old in program
            return keeper.check(gate, place(program), place(program.replace(old, new)), rounds_to)

        yield run


@pytest.mark.parametrize(
    ("gate", "name"),
    [
        (Gate.BITWISE, "a zeroed gradient"),
        *(pytest.param(Gate.BITWISE, name, marks=pytest.mark.nightly) for name in WRONG if name != "a zeroed gradient"),
        *((Gate.ROUNDING, name) for name in WRONG),  # what passes bit for bit passes this one too
    ],
)
def test_a_wrong_fix_never_passes(check: Check, gate: Gate, name: str) -> None:
    answer = check(gate, *WRONG[name])
    assert answer.passed is False, answer.detail
    assert answer.gate is gate


@pytest.mark.parametrize("name", NOT_BITWISE)
def test_what_changes_the_training_is_told_by_what_changes_first(check: Check, name: str) -> None:
    old, new, said = NOT_BITWISE[name]
    answer = check(Gate.BITWISE, old, new)
    assert answer.passed is False
    assert answer.detail == said


def test_a_wrong_epsilon_is_seen_before_it_matters(check: Check) -> None:
    answer = check(Gate.ROUNDING, *WRONG_EPSILON)
    assert answer.passed is False
    assert answer.detail == "optimizer 0, group 0: eps is 1e-09, was 1e-08"


def test_a_fix_that_changes_no_number_passes_bit_for_bit(check: Check) -> None:
    answer = check(Gate.BITWISE, *RIGHT["loss.item() moved out"])
    assert answer.passed is True
    assert answer.detail.endswith("of 5 steps are equal bit for bit")


def test_the_same_mathematics_in_another_order_passes_the_rounding_gate_only(check: Check) -> None:
    fused = ("lr=1e-3)", "lr=1e-3, fused=True)")
    answer = check(Gate.ROUNDING, *fused)
    assert answer.passed is True, answer.detail
    assert check(Gate.ROUNDING, *RIGHT["the same loss, written out"]).passed is True


@pytest.mark.parametrize("name", OF_OTHER_LAYERS)
def test_layers_that_hold_their_input_against_their_weights_have_a_reference_too(check: Check, name: str) -> None:
    program = PROGRAM.replace("torch.set_num_threads(1)", LAST_STATE).replace(*OF_OTHER_LAYERS[name])
    same = check(Gate.ROUNDING, *RIGHT["the same loss, written out"], program=program)
    assert same.passed is True, same.detail
    assert check(Gate.ROUNDING, *WRONG["a wrong scale"], program=program).passed is False


def test_a_narrower_format_passes_only_where_the_fix_declares_it(check: Check) -> None:
    narrower = ("torch.set_num_threads(1)", TO_TEN_BITS)
    assert check(Gate.ROUNDING, *narrower).passed is False
    declared = check(Gate.ROUNDING, *narrower, "tf32")
    assert declared.passed is True, declared.detail
    wrong = TO_TEN_BITS.replace("0xFFF", "0x7FFFF").replace(">> 13", ">> 20").replace("0x1FFF", "0xFFFFF")
    assert check(Gate.ROUNDING, "torch.set_num_threads(1)", wrong, "tf32").passed is False


DEEP = PROGRAM.replace(
    "nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4)",
    "*(nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32)) for _ in range(40)), nn.Linear(32, 4)",
).replace("torch.optim.AdamW(model.parameters(), lr=1e-3)", "torch.optim.SGD(model.parameters(), lr=0.1)")
"""Batch statistics of forty layers multiply rounding until it hides the gradients."""
DEEP_WRONG = {
    "a wrong scale": ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y) * 1.00001"),
    "a wrong epsilon": ("nn.BatchNorm1d(32)) for", "nn.BatchNorm1d(32, eps=1.01e-5)) for"),
    "a stale buffer": ("    optimizer.step()", "    optimizer.step()\n    model[1].running_mean.zero_()"),
    "a narrower format": (
        "F.cross_entropy(model(x), y)",
        "F.cross_entropy(model[2:](model[:2](x).bfloat16().float()), y)",
    ),
}


def written(folder: Path, *texts: str) -> list[Program]:
    """Programs of these texts, each in a folder of its own."""
    for number, text in enumerate(texts):
        (folder / f"program{number}").mkdir()
        (folder / f"program{number}" / "train.py").write_text(text)
    return [Program.parse(["train.py"], cwd=folder / f"program{number}") for number in range(len(texts))]


def test_a_program_whose_rounding_hides_its_gradients_is_judged_in_float64(check: Check) -> None:
    answer = check(Gate.ROUNDING, *RIGHT["the same loss, written out"], program=DEEP)
    assert answer.passed is True, answer.detail
    assert "are equal in float64" in answer.detail


@pytest.mark.parametrize("name", DEEP_WRONG)
def test_a_wrong_fix_of_a_program_whose_rounding_hides_its_gradients_is_refused(check: Check, name: str) -> None:
    answer = check(Gate.ROUNDING, *DEEP_WRONG[name], program=DEEP)
    assert answer.passed is False, answer.detail
    assert ("as coarsely" if name == "a narrower format" else "in float64 it differs") in answer.detail


def in_bf16(text: str) -> str:
    return text.replace("    loss = F", "    with torch.autocast('cpu', torch.bfloat16): loss = F")


@pytest.mark.parametrize(
    ("text", "change", "passed", "references"),
    [
        (in_bf16(PROGRAM), RIGHT["the same loss, written out"], True, ["float32"]),
        (in_bf16(PROGRAM), WRONG["skipped samples"], False, ["float32"]),
        (in_bf16(DEEP), RIGHT["the same loss, written out"], True, ["float32", "float64", "float64"]),
        (in_bf16(DEEP), DEEP_WRONG["a wrong scale"], False, ["float32", "float64", "float64"]),
        (PROGRAM, RIGHT["the same loss, written out"], True, ["float32", "float64"]),
    ],
    ids=["bfloat16", "skipped samples", "rounding that grows", "a wrong scale", "float32 after all"],
)
def test_a_program_in_a_narrow_format_is_judged_by_a_reference_in_float32(
    text: str, change: tuple[str, str], passed: bool, references: list[str], tmp_path: Path
) -> None:
    original, patched = written(tmp_path, text, text.replace(*change))
    with Groups() as groups:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        place = Workplace(groups, tmp_path / "work", sys.executable, lambda _: environment)
        answer = Gatekeeper(place, LIMIT_NS, precision="float32").check(Gate.ROUNDING, original, patched)
    assert answer.passed is passed, answer.detail
    names = (path.name.split("-", 2)[2] for path in (tmp_path / "work").glob("capture-*"))
    assert sorted(name for name in names if name != "values") == references


def test_a_program_with_the_numbers_of_another_is_judged_by_the_reference_of_that(tmp_path: Path) -> None:
    texts = [
        PROGRAM,
        PROGRAM.replace("lr=1e-3)", "lr=1e-3, fused=True)"),
        PROGRAM.replace("lr=1e-3)", "lr=1e-3, fused=True)").replace(*RIGHT["the same loss, written out"]),
        PROGRAM.replace("lr=1e-3)", "lr=1e-3, fused=True)").replace(*WRONG["a wrong scale"]),
    ]
    original, kept, right, wrong = written(tmp_path, *texts)
    with Groups() as groups:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        keeper = Gatekeeper(Workplace(groups, tmp_path / "work", sys.executable, lambda _: environment), LIMIT_NS)

        def captures() -> list[str]:
            return sorted(path.name.split("-", 2)[2] for path in (tmp_path / "work").glob("capture-*"))

        assert keeper.check(Gate.ROUNDING, original, kept).passed
        assert captures() == ["float64", "values", "values"]
        assert keeper.check(Gate.ROUNDING, kept, right).passed
        assert captures() == ["float64", "values", "values", "values"]
        assert keeper.check(Gate.ROUNDING, kept, wrong).passed is False  # by a reference of its own
        assert captures() == ["float64", "float64", "values", "values", "values", "values"]


def test_a_program_that_is_not_deterministic_falls_to_the_rounding_gate_and_says_so(check: Check) -> None:
    jittery = PROGRAM.replace("    loss.backward()", "    loss.backward()\n    flip(model[0].weight.grad)").replace(
        "order =",
        "from random import SystemRandom\n"
        "luck = torch.Generator().manual_seed(SystemRandom().getrandbits(32))\n"
        "def flip(t): t *= 1 + 1e-6 * torch.rand(t.shape, generator=luck)\norder =",
    )
    answer = check(Gate.BITWISE, "lr=1e-3)", "lr=0.001)", program=jittery)
    assert answer.gate is Gate.ROUNDING
    assert "not deterministic" in answer.detail


def test_without_a_backward_pass_the_gate_is_unverified_not_passed(check: Check) -> None:
    silent = PROGRAM.replace(
        "    loss.backward()\n", "    list(map(lambda p: setattr(p, 'grad', p * 0), model.parameters()))\n"
    )
    answer = check(Gate.BITWISE, "lr=1e-3)", "lr=0.001)", program=silent)
    assert answer.passed is None
    assert "no loss was seen" in answer.detail


def test_a_patched_program_that_crashes_gives_no_verdict_on_its_numbers(check: Check) -> None:
    answer = check(Gate.BITWISE, "    loss.backward()", "    raise ValueError('broken')")
    assert answer.passed is None
    assert "broken" in answer.detail
