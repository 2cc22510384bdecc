"""Forks once it was traced: the child exits as programs do, and the parent prints how."""

import os
import signal
import sys

import light  # noqa: F401 - before torch
import torch

weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(30):
    weight.square().sum().backward()
    optimizer.step()
child = os.fork()
if child == 0:
    signal.alarm(20)  # a child that hangs shall not do so for ever
    sys.stdout.write("what the child prints")
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
