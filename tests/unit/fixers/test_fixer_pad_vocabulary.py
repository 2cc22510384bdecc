"""pad-vocabulary on differently written models: the same loss, gradients and parameters, other shapes inside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.compose.proposals.constraints import conflict, goes_first
from diagnose.fixer import Edits, example_request
from diagnose.plugins import load

FIXERS = load().fixers
FIXER = FIXERS["pad-vocabulary"]

TIED = """
import torch
import torch.nn as nn
from torch.nn import functional as F

class GPT(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        vocab_size, n_embd = 101, 8
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(vocab_size, n_embd), ln_f=nn.LayerNorm(n_embd)))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.transformer.ln_f(self.transformer.wte(idx))
        if targets is not None:
            # if we are given some desired targets also calculate the loss
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :]) # note: using list [-1] to preserve the time dim
            loss = None
        return logits, loss

def loss_of(tokens):
    return model(tokens[:, :-1], tokens[:, 1:].contiguous())[1]

model = GPT()
"""

BIASED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.decoder = nn.Linear(8, vocabulary)

    def forward(self, x):
        output, _ = self.rnn(self.embedding(x))
        return self.decoder(output)

criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

def loss_of(tokens):
    output = model(tokens[:, :-1])
    return criterion(output.transpose(1, 2), tokens[:, 1:])

model = Model(101)
"""

NESTED = """
import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 101

class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, VOCAB, bias=False)

    def forward(self, x):
        return self.out(self.norm(x)).float()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, 8)
        self.head = Head(8)

    def forward(self, x):
        return self.head(self.tok_embeddings(x))

def loss_of(tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

model = Model().float()
"""


def numbers(text: str) -> dict[str, torch.Tensor]:
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        exec(compile(text, "train.py", "exec"), names)
        generator = torch.Generator().manual_seed(1)
        loss = names["loss_of"](torch.randint(101, (3, 7), generator=generator))
        loss.backward()
    finally:
        torch.set_default_dtype(default)
    model = names["model"]
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss, "next random number": torch.rand(1), **found}


@pytest.mark.parametrize("text", [TIED, BIASED, NESTED], ids=["tied", "biased", "nested"])
def test_loss_and_gradients_and_initial_values_stay(text: str) -> None:
    answer = FIXER.rewrite(example_request("misaligned-matmul", text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert patched.count("pad(self.") == (2 if text is BIASED else 1)
    before, after = numbers(text), numbers(patched)
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-9, atol=1e-12) if ".float()" not in text else (
            torch.testing.assert_close(after[name], value)
        )


def test_an_operator_that_takes_scores_and_loss_together_goes_first_and_leaves_nothing_to_pad() -> None:
    fused = FIXERS["fuse-linear-cross-entropy"]
    assert goes_first(FIXER, [FIXER, fused]) is fused
    assert conflict(FIXER, fused)


def test_generation_keeps_its_product_for_one_position() -> None:
    answer = FIXER.rewrite(example_request("misaligned-matmul", TIED))
    assert isinstance(answer, Edits)
    assert "logits = self.lm_head(x[:, [-1], :]) # note" in answer.files["train.py"]


def test_the_product_itself_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = FIXER.rewrite(example_request("misaligned-matmul", NESTED))
    assert isinstance(answer, Edits)
    seen: list[tuple[int, ...]] = []
    linear = torch.nn.functional.linear

    def watched(*operands: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(operands[1].shape))
        return linear(*operands)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    numbers(answer.files["train.py"])
    assert seen == [(128, 8)]
