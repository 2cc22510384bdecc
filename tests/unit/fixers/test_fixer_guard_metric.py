"""A metric that is computed less often is the same where it is shown, and training does not notice."""

from __future__ import annotations

import pytest
from program_outcome import outcome

from diagnose.fixer import Edits, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["guard-metric"]

FLAT = """
import torch

def distance(one, other):
    row = list(range(len(other) + 1))
    for number, left in enumerate(one, 1):
        diagonal, row[0] = row[0], number
        for column, right in enumerate(other, 1):
            best = min(diagonal + (left != right), row[column] + 1, row[column - 1] + 1)
            diagonal, row[column] = row[column], best
    return row[-1]

torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
for step in range(1, 13):
    logits = model(x)
    loss = torch.nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    answers = logits.argmax(dim=-1).tolist()
    errors = distance(answers, y.tolist())
    if step % 5 == 0:
        print(step, loss.item(), errors)
"""
FUNCTION = """
import torch

def rate(found, wanted):
    return sum(a == b for a, b in zip(found, wanted)) / len(wanted)

def main():
    global model
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rates = []
    for i, (x, y) in enumerate([(torch.randn(8, 4), torch.randint(0, 3, (8,)))] * 9):
        logits = model(x)
        torch.nn.functional.cross_entropy(logits, y).backward()
        optimizer.step()
        rates.append(rate(logits.argmax(1).tolist(), y.tolist()))

        # shown now and then
        if i % 4 == 0:
            print(f"{rates[-1]:.3f}")

main()
"""
TRAINER = """
import torch

class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def fit(self, batches, every=3):
        step = 0
        for epoch in range(2):
            for x, y in batches:
                logits = self.model(x)
                loss = torch.nn.functional.cross_entropy(logits, y)
                loss.backward()
                self.optimizer.step()
                step += 1
                accuracy = (logits.argmax(1) == y).float().mean().item()
                if step % every == 0:
                    print(step, accuracy)

trainer = Trainer()
trainer.fit([(torch.randn(8, 4), torch.randint(0, 3, (8,)))] * 4)
model = trainer.model
"""


@pytest.mark.parametrize("text", [FLAT, FUNCTION, TRAINER], ids=["flat", "function", "trainer"])
def test_what_is_shown_and_what_is_trained_stay_the_same(text: str) -> None:
    answer = FIXER.rewrite(example_request("python-stall", text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert patched != text
    assert outcome(patched) == outcome(text)
    assert FIXER.rewrite(example_request("python-stall", patched)) is None


@pytest.mark.parametrize(
    "line",
    [
        "seen.append(1); errors = distance(answers, y.tolist())",
        "errors = log(distance(answers, y.tolist()))",
        "errors = torch.rand(3).tolist()",
        "errors = model.train()",
        "errors = answers.pop()",
        "errors = (answers := 3)",
    ],
)
def test_what_may_do_more_than_compute_stays(line: str) -> None:
    text = FLAT.replace("errors = distance(answers, y.tolist())", line)
    assert FIXER.rewrite(example_request("python-stall", text)) is None


def test_a_function_that_changes_what_it_is_given_stays() -> None:
    text = FLAT.replace("    row = list", "    other[0] = 1\n    row = list")
    assert FIXER.rewrite(example_request("python-stall", text)) is None


@pytest.mark.parametrize("check", ["assert other", "if not other:\n        raise ValueError(one)"])
def test_a_function_that_may_end_the_run_itself_stays(check: str) -> None:
    text = FLAT.replace("    row = list", f"    {check}\n    row = list")
    assert FIXER.rewrite(example_request("python-stall", text)) is None


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("def fit(distance):\n    pass\n", "errors = waiting.get()"),
        ("", "errors = waiting.get(timeout=1)"),
        (
            "class Counter:\n    def count(self, x):\n        self.n += 1\n\n\ncounter = Counter()\n",
            "errors = counter.count(y)",
        ),
        ("distance = Meter()\n", "errors = distance(answers, y.tolist())"),
    ],
    ids=["queue", "queue with a limit", "own method", "own object"],
)
def test_what_bears_the_name_of_something_that_only_computes_stays(before: str, line: str) -> None:
    text = FLAT.replace("errors = distance(answers, y.tolist())", line).replace(
        "torch.manual_seed", f"{before}torch.manual_seed"
    )
    assert FIXER.rewrite(example_request("python-stall", text)) is None
