"""What a forward pass and a step run beside their own lines: helpers, functions, methods with names of torch's."""

from __future__ import annotations

import pytest

from diagnose.source.dataflow.reachable_code import ReachableCode
from diagnose.source.training.repeated_forward import forward_effect
from diagnose.source.tree.syntax import parse

BLOCK = """from torch import nn

seen = []


def note(store, x):
    {function}


class Block(nn.Module):
    def helper(self, x):
        {helper}
        return x

    def unused(self, x):
        self.calls += 1

    def forward(self, x):
        {forward}
        return x
"""


@pytest.mark.parametrize(
    ("forward", "helper", "function", "line"),
    [
        ("x = self.helper(x)", "self.calls += 1", "pass", 12),
        ("x = self.helper(x)", "print(x)", "pass", 12),
        ("x = self.helper(x)", "note(seen, x)", "store.append(x)", 7),
        ("note(seen, x)", "pass", "store.append(x)", 7),
        ("x = self.helper(x)", "x = x + 1", "pass", None),
        ("x = self.other(x)", "self.calls += 1", "pass", None),
        ("x = self.helper(x)", "Block.calls += 1", "pass", 12),
        ("note(self.mean, x)", "pass", "store.lerp_(x.mean(0), 0.1)", 19),
        ("note(x=x, store=self.mean[0])", "pass", "store[:] = x", 19),
        ("note(x * 2, x)", "pass", "store.relu_()", None),
        ("note(self.mean, x)", "pass", "x = store.lerp(x, 0.1)", None),
        ("mean = self.mean\n        mean.mul_(0.9)", "pass", "pass", 20),
        ("mean = self.mean * 2\n        mean.mul_(0.9)", "pass", "pass", None),
        ("x = x.new_empty(3).normal_(generator=self.noise)", "pass", "pass", 19),
        ("x = x.new_empty(3).normal_(generator=None)", "pass", "pass", None),
    ],
)
def test_what_a_forward_pass_calls_counts_as_its_own(
    forward: str, helper: str, function: str, line: int | None
) -> None:
    found = forward_effect({"net.py": BLOCK.format(forward=forward, helper=helper, function=function)})
    assert (found or "None").split()[0] == (f"net.py:{line}" if line else "None")


def test_a_function_of_the_same_file_goes_before_others_of_its_name() -> None:
    other = "import numpy\n\n\ndef sampled(x):\n    return numpy.random.choice(x)\n"
    net = "from torch import nn\n\n\n{own}class Net(nn.Module):\n    def forward(self, x):\n        return sampled(x)\n"
    own = "def sampled(x):\n    return x[::2]\n\n\n"
    assert forward_effect({"data.py": other, "net.py": net.format(own=own)}) is None
    assert "data.py:5" in str(forward_effect({"data.py": other, "net.py": net.format(own="")}))


STEP = """class Keeper:
    def update(self, folder):
        print(folder)


{made}
for step in range(9):
    keeper.update("out")
"""


@pytest.mark.parametrize(("made", "followed"), [("keeper = Keeper()", True), ("keeper = torch.optim.SGD(w)", False)])
def test_a_method_with_a_name_of_torchs_is_followed_on_the_programs_own_objects(made: str, followed: bool) -> None:
    source = parse(STEP.format(made=made))
    assert source is not None
    begins = [("train.py", source, source.module.body[-1])]
    pieces = [source.code(piece) for piece in ReachableCode({"train.py": source}, begins).pieces]
    assert any("print(folder)" in code for code in pieces) is followed
