"""Code of modules that the run had no instance of is not rewritten: no run would check it."""

from __future__ import annotations

import pytest

from diagnose.fixer import Edits, Site, example_request
from diagnose.plugins import load

FIXERS = load().fixers
HEAD = "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"
BUILT = "class Net(nn.Module):\n    pass\n\n\n"
GELU = """class Act(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))
"""
NORM = """class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
"""
ATTENTION = """class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = (q @ k.transpose(-2, -1)) * (q.size(-1) ** -0.5)
        return torch.softmax(scores, dim=-1) @ v
"""


@pytest.mark.parametrize(
    ("fixer", "rule", "code", "name"),
    [
        ("native-gelu", "unfused-pointwise", GELU, "Act"),
        ("native-norm", "unfused-pointwise", NORM, "Norm"),
        ("use-sdpa", "unfused-attention", ATTENTION, "Attention"),
    ],
)
def test_a_class_is_rewritten_where_the_run_built_it_or_nobody_looked(
    fixer: str, rule: str, code: str, name: str
) -> None:
    def answer(*classes: str) -> object:
        sites = [Site("module classes", "train.py", 1, None, {"classes": ", ".join(classes)})] if classes else []
        return FIXERS[fixer].rewrite(example_request(rule, HEAD + BUILT + code, sites=sites))

    assert isinstance(answer(), Edits)
    assert isinstance(answer("Net", name), Edits)
    assert answer("Net") is None
