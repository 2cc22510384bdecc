"""native-norm on normalisations as people write them: the same outputs and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["native-norm"]

HEAD = """import torch
import torch.nn as nn

class Norm(nn.Module):
    def __init__(self, dim=8, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
"""

BODIES = {
    "one line": "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gamma\n",
    "weight first": """        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.gamma * x
""",
    "divided by a root": """        rms = torch.sqrt(torch.mean(x ** 2, dim=-1, keepdim=True) + self.eps)
        x_normed = x / rms
        return self.gamma * x_normed
""",
    "weight in the middle": "        square = x.square()\n"
    "        return self.gamma * x * (square.mean(dim=-1, keepdim=True) + self.eps) ** -0.5\n",
    "mean and variance": """        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        # '-1' means last dimension.
        out = (x - mean) / torch.sqrt(var + self.eps)
        out = self.gamma * out + self.beta
        return out
""",
    "centred by hand": """        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        return centred / torch.sqrt(variance + 1e-5) * self.gamma + self.beta
""",
    "in place on what is new": """        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        x *= self.gamma
        return x
""",
    "without a weight": "        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)\n",
}


def results(text: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(text, "train.py", "exec"), names)
    model = names["Norm"]().double()
    with torch.no_grad():
        model.gamma.uniform_(0.5, 2)
        model.beta.normal_()
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    output = model(x)
    (output * torch.sin(torch.arange(120.0, dtype=torch.float64)).view_as(output)).sum().backward()
    return [output, *(each.grad for each in (x, model.gamma, model.beta) if each.grad is not None)]


@pytest.mark.parametrize("name", BODIES)
def test_the_same_numbers_come_out(name: str) -> None:
    answer = FIXER.rewrite(example_request("unfused-pointwise", HEAD + BODIES[name]))
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    body = text.partition("def forward(self, x):\n")[2]
    assert "_norm(" in body
    assert "mean" not in body
    before, after = results(HEAD + BODIES[name]), results(text)
    assert len(before) == len(after) > 1
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


CAST = """        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.gamma * x.to(dtype)
"""


def test_what_is_computed_in_float32_may_be_computed_by_the_kernel() -> None:
    answer = FIXER.rewrite(example_request("unfused-pointwise", HEAD + CAST))
    assert isinstance(answer, Edits)
    for one, other in zip(results(HEAD + CAST), results(answer.files["train.py"]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


LEFT_ALONE = {
    "in double precision": CAST.replace("x.to(torch.float32)", "x.to(torch.float64)"),
    "in double precision by a method": CAST.replace("x.to(torch.float32)", "x.double()"),
    "standard deviation": "        std = x.std(-1, keepdim=True)\n"
    "        return self.gamma * (x - x.mean(-1, keepdim=True)) / (std + self.eps) + self.beta\n",
    "unbiased": "        var = x.var(-1, keepdim=True)\n"
    "        return self.gamma * (x - x.mean(-1, keepdim=True)) / torch.sqrt(var + self.eps) + self.beta\n",
    "over channels": "        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * self.gamma\n",
    "epsilon outside": "        return x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + 1e-6) * self.gamma\n",
    "another tensor's size": "        y = x + 1\n"
    "        return y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n",
    "learned epsilon": "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.beta) * self.gamma\n",
    "two draws": "        d = torch.rand_like\n"
    "        return d(x) * torch.rsqrt(d(x).pow(2).mean(-1, keepdim=True) + 1e-6)\n",
    "input changed on the way": "        var = x.pow(2).mean(-1, keepdim=True)\n        x = x + 1\n"
    "        return x * torch.rsqrt(var + 1e-6)\n",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_look_alikes_are_left_alone(name: str) -> None:
    assert FIXER.rewrite(example_request("unfused-pointwise", HEAD + LEFT_ALONE[name])) is None


def test_derivatives_of_derivatives_keep_what_the_program_wrote() -> None:
    text = HEAD + BODIES["mean and variance"] + "\n\nslope = torch.autograd.grad(y, x, create_graph=True)\n"
    answer = FIXER.rewrite(example_request("unfused-pointwise", text))
    assert isinstance(answer, Advice)
    assert "train.py:" in answer.text


@pytest.mark.parametrize("start", ["torch.rand(dim)", "torch.randn(dim)", "torch.full((dim,), 0.5)"])
def test_a_weight_may_begin_with_other_numbers_than_ones(start: str) -> None:
    text = (HEAD + BODIES["one line"]).replace("torch.ones(dim)", start)
    assert isinstance(FIXER.rewrite(example_request("unfused-pointwise", text)), Edits)


@pytest.mark.parametrize(
    "body",
    [
        # NumPy's arrays
        "return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 1e-8)",
        "return x / ((x ** 2).mean(-1, keepdims=True) + 1e-8) ** 0.5",
        "m = np.mean(x, -1, keepdims=True)\n    v = np.mean((x - m) ** 2, -1, keepdims=True)\n"
        "    return (x - m) / np.sqrt(v + 1e-8)",
        # the caller's tensor is written to
        "x *= torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n    return x * 2",
        "return x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))",
        "h = x\n    h *= torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)\n    return h * 2",
    ],
)
def test_arrays_and_writes_into_the_input_are_left_alone(body: str) -> None:
    text = f"import numpy as np\nimport torch\n\n\ndef norm(x):\n    {body}\n"
    assert FIXER.rewrite(example_request("unfused-pointwise", text)) is None


def test_an_epsilon_that_is_a_tensor_stays_one() -> None:
    text = (HEAD + BODIES["weight first"]).replace("self.eps = eps", 'self.register_buffer("eps", torch.tensor(eps))')
    assert FIXER.rewrite(example_request("unfused-pointwise", text)) is None
