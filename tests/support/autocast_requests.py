"""Requests to `autocast-bf16`, and the program that most of its tests are made of."""

from __future__ import annotations

from diagnose.fixer import Answer, Facts, example_request
from diagnose.model import Site
from diagnose.plugins import load

FIXER = load().fixers["autocast-bf16"]
FLAT = """\
import torch
from torch import nn
device = torch.device("cpu")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
formats = []
for step in range(4):
    inputs, labels = torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device)
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    formats.append((outputs.dtype, loss.dtype, model[0].weight.dtype))
"""
FLOAT32 = Facts(autocast_dtype="none", device_name="NVIDIA H200", device_capability=(9, 0))


def fixed(text: str, *sites: Site, facts: Facts = FLOAT32) -> Answer:
    return FIXER.rewrite(example_request("fp32-matmul", text, sites=sites, facts=facts))
