"""Language models as people write them, that make their logits in an output layer, and what one of them computes."""

from __future__ import annotations

from functools import partial

import rewriting
import torch
from rewriting import FIXERS, imported

FIXER = FIXERS["fuse-linear-cross-entropy"]
fixed = partial(rewriting.fixed, "fuse-linear-cross-entropy", rule="unfused-loss")
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
STEPS = """
def run():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Model()
    x, y = torch.randint(19, (3, 5)), torch.randint(19, (3, 5))
    losses = []
    for _ in range(2):
        model.zero_grad()
{step}
        loss.backward()
        losses.append(loss.detach())
    torch.set_default_dtype(torch.float32)
    return [*losses, *(p.grad for p in model.parameters())]
"""
PAIR = STEPS.format(step="        logits, loss = model(x, y)")
NANO = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(19, 8), ln_f=nn.LayerNorm(8)))
        self.lm_head = nn.Linear(8, 19, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # tied

    def forward(self, idx, targets=None):
        x = self.transformer.ln_f(self.transformer.wte(idx))

        if targets is not None:
            # if we are given some desired targets also calculate the loss
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            # inference-time mini-optimization: only forward the lm_head on the very last position
            logits = self.lm_head(x[:, [-1], :])  # note: using list [-1] to preserve the time dim
            loss = None

        return logits, loss

    def generate(self, idx):
        logits, _ = self(idx)
        return logits[:, -1, :]

"""
    + PAIR
)
IN_STEP = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(19, 8)
        self.mix = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.out = nn.Linear(8, 19)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        for layer in self.mix:
            h = torch.relu(layer(h)) + h
        logits = self.out(h)
        return logits

"""
    + STEPS.format(
        step="        with torch.autocast('cpu', enabled=False):\n            output = model(x)\n"
        "            loss = criterion(output.reshape(-1, 19), y.reshape(-1))"
    ).replace("    losses = []", "    criterion = nn.CrossEntropyLoss(ignore_index=0)\n    losses = []")
)


def outcome(text: str) -> list[torch.Tensor]:
    """Losses and gradients of two steps."""
    module = imported(text)
    results: list[torch.Tensor] = module.run()
    return results


def assert_fixed_alike(text: str, wanted: str) -> None:
    """The fixed program has the line that is wanted, and computes the same."""
    patched = fixed(text)
    assert wanted in patched
    assert "from diagnose.kernels import linear_cross_entropy\n" in patched
    # In the programs with `.float()` the original rounds its logits to float32, the fused operator does not.
    rtol, atol = (1e-5, 1e-6) if ".float()" in text else (1e-11, 1e-12)
    for one, other in zip(outcome(text), outcome(patched), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=atol)
