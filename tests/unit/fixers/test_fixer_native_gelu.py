"""native-gelu on activations as people write them: the same outputs and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["native-gelu"]

PROGRAMS = {
    "nanogpt": (
        "import math\nimport torch\nimport torch.nn as nn\n\ndef new_gelu(x):\n    return 0.5 * x * (1.0 + "
        "torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))\n",
        "new_gelu",
        "nn.functional.gelu(x, approximate=",
    ),
    "bert": (
        "import math, torch\n\nclass GELU(torch.nn.Module):\n    def forward(self, input_tensor):\n"
        "        cdf = 0.5 * (1.0 + torch.erf(input_tensor / math.sqrt(2.0)))\n        return input_tensor * cdf\n"
        "act = GELU()\n",
        "act",
        "torch.nn.functional.gelu(input_tensor)",
    ),
    "constants": (
        "import torch\nfrom torch.nn import functional as F\n\nC = 0.7978845608028654\n\ndef act(h):\n"
        "    inner = C * (h + 0.044715 * h * h * h)\n    return h / 2 * (torch.tanh(inner) + 1)\n",
        "act",
        'F.gelu(h, approximate="tanh")',
    ),
    "swish": (
        "import torch\nfrom torch import nn\n\nclass Swish(nn.Module):\n    def forward(self, x):\n"
        "        return x * x.sigmoid()\nact = Swish()\n",
        "act",
        "nn.functional.silu(x)",
    ),
}


def results(text: str, name: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    output = names[name](x)
    output.sum().backward()
    assert x.grad is not None
    return [output, x.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_come_out(name: str) -> None:
    text, function, wanted = PROGRAMS[name]
    answer = FIXER.rewrite(example_request("unfused-pointwise", text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert wanted in patched
    for one, other in zip(results(text, function), results(patched, function), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("formula", "edited"),
    [
        ("0.5 * x * (1 + torch.erf(x * 0.7071067811865476))", True),
        ("0.5 * x * (1 + torch.erf(x * 0.70710678))", True),
        ("0.5 * x * (1 + torch.erf(x / 1.41421356))", True),
        ("0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x ** 3)))", True),
        ("0.5 * x * (1 + torch.erf(x * 0.7071))", False),
        ("0.5 * x * (1 + torch.erf(x / 1.4142))", False),
        ("0.5 * x * (1 + torch.tanh(0.797885 * (x + 0.044715 * x ** 3)))", False),
        ("0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.0447 * x ** 3)))", False),
        ("0.4999 * x * (1 + torch.erf(x * 0.70710678))", False),
    ],
)
def test_a_constant_has_the_digits_that_float32_can_tell(formula: str, edited: bool) -> None:
    text = f"import torch\n\ndef act(x):\n    return {formula}\n"
    assert isinstance(FIXER.rewrite(example_request("unfused-pointwise", text)), Edits) is edited


@pytest.mark.parametrize(
    "bound", ["self.scale = self.scale * 2.0", "self.scale = self.other\n        self.other = self.scale"]
)
def test_what_a_class_binds_to_itself_is_no_constant(bound: str) -> None:
    text = (
        "import torch\n\nclass Act(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {bound}\n\n    def forward(self, x):\n        return self.scale * x * (1.0 + torch.erf(x))\n"
    )
    assert FIXER.rewrite(example_request("unfused-pointwise", text)) is None


@pytest.mark.parametrize(
    "body",
    [
        "return x.mul_(torch.sigmoid(x))",  # others may hold x
        "x *= torch.sigmoid(x)\n    return x",
        "return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))",  # of a number
        "return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))",
        "return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))",  # of an array
    ],
)
def test_numbers_arrays_and_writes_into_the_input_are_left_alone(body: str) -> None:
    text = f"import math\n\nimport numpy as np\nimport torch\n\n\ndef act(x):\n    {body}\n"
    assert FIXER.rewrite(example_request("unfused-pointwise", text)) is None


def test_a_line_that_was_too_long_before_stays_one_line() -> None:
    line = f"ACTIVATIONS = {{'swish': dict(func=lambda x: torch.sigmoid(x) * x, note='{'x' * 80}')}}\n"
    answer = FIXER.rewrite(example_request("unfused-pointwise", f"import torch\n{line}"))
    assert isinstance(answer, Edits)
    assert line.replace("torch.sigmoid(x) * x", "torch.nn.functional.silu(x)") in answer.files["train.py"]
