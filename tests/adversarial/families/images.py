"""Models of images: weights that are written to in place, and dropouts of images and of rows of numbers."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

LOOP = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.spread = nn.Linear(8, 8 * 9)
        self.drop = nn.Dropout(<share>)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.first(x))
        <forward>
        return self.out(x)


<helper>


torch.manual_seed(2)
model = Net()
<start>
kept = torch.ones_like(model.second.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    x = torch.randn(4, 3, 6, 6)
    y = torch.randint(5, (4,))
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    <gradient>
    optimizer.step()
    <weight>
    if step % 3 == 2:
        print(step, f"{loss.item():.3f}")
print(f"{sum(p.abs().sum().item() for p in model.parameters()):.2f}", f"{kept.sum().item():.1f}")
"""
FORWARDS = {
    "plain": "x = self.second(x).mean((2, 3))",
    "flat": "x = self.second(x).mean((2, 3), keepdim=True)\nx = x.flatten(1)\nx += 0.5",
    "dropped_rows": "x = self.drop(self.second(x).mean((2, 3)))",
    "dropped_linear": "x = self.second(x).mean((2, 3))\nx = self.drop(F.relu(self.spread(x)))[:, :8]",
    "dropped_images": "x = self.drop(self.second(x)).mean((2, 3))",
    "weighed": (
        "w = torch.sigmoid(self.out(x.mean((2, 3)))).mean(1)\nx = self.drop(x * w[:, None, None, None])\n"
        "x = self.second(x).mean((2, 3))"
    ),
    "grown": ("x = self.spread(x.mean((2, 3))).view(-1, 8, 3, 3)\nx = self.drop(self.second(x))\nx = x.mean((2, 3))"),
    "noised": "x = x + 0.1 * torch.randn_like(x)\nx = self.second(x).mean((2, 3))",
}
GRADIENTS = {
    "clamped": "model.second.weight.grad.flatten().clamp_(-0.01, 0.01)",
    "masked": "flat = model.second.weight.grad.reshape(-1)\nflat[::2] = 0",
    "read": "norm = model.second.weight.grad.flatten().norm()",
}
WEIGHTS = {
    "scaled": "w = model.second.weight.data\nw = w.flatten(1)\nw /= w.norm(dim=1, keepdim=True)",
    "bounded": "bound(model.second.weight.data)",
    "filled": "unit_(model.second.weight.data.flatten(1))",
    "by_rows": "for row in model.second.weight.data.flatten(1):\n    row.div_(row.norm())",
    "pruned": "kept.flatten()[model.second.weight.data.flatten().abs() < 0.02] = 0",
    "drawn_anew": "if step == 6:\n    nn.init.normal_(model.second.weight, std=0.2)",
    "copied": "w = model.second.weight.data.flatten(1).clone()\nw /= w.norm(dim=1, keepdim=True)",
}
STARTS = {
    "apply": "other = Net()\nother.apply(fill); model.apply(fill)",
    "function": "frozen = Net().eval()\nfill_all(model)",
    "loop": "print(sum(p.numel() for p in model.parameters()))\nfor m in model.modules():\n    fill(m)",
    "in_place": "print(model)\nmodel.first.weight.data.normal_(0, 0.2)",
}
FILL = """
def fill(m):
    if isinstance(m, nn.Conv2d):
        nn.init.normal_(m.weight, 0.0, 0.2)


def fill_all(net):
    for m in net.modules():
        fill(m)
"""
HELPERS = {
    "bounded": "def bound(w):\n    w = w.reshape(w.size(0), -1)\n    w.renorm_(2, 0, 0.5)",
    "filled": "def unit_(w):\n    w.div_(w.norm(dim=1, keepdim=True))",
}
_CLOSED = "what is flattened is written to, in place"


def programs() -> Iterator[Program]:
    """Each forward pass, each way to fill the weights, and each write to a gradient or a weight."""
    yield from (_program(f"forward_{name}", forward=code) for name, code in FORWARDS.items())
    yield from (_program(f"start_{name}", start=code, helper=FILL) for name, code in STARTS.items())
    yield from (_program(f"gradient_{name}", gradient=code, closed=name != "read") for name, code in GRADIENTS.items())
    for name, code in WEIGHTS.items():
        yield _program(f"weight_{name}", weight=code, helper=HELPERS.get(name, ""), closed=name != "copied")


def _program(name: str, closed: bool = False, **parts: str) -> Program:
    parts = {"forward": FORWARDS["plain"], "start": "", "gradient": "", "weight": "", "helper": "", **parts}
    share = "0.5" if "self.drop" in parts["forward"] else "0.0"
    return Program(
        f"images_{name}",
        "images",
        fill(LOOP, share=share, **parts),
        edited=frozenset() if closed else frozenset({"channels-last"}),
        left_alone={"channels-last": _CLOSED} if closed else {},
    )
