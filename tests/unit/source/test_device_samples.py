"""Samples that lie on a device already: no worker can make them, and they cannot be pinned."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

TOP = """accelerator = Accelerator()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
class Scale:
    def __init__(self, where):
        self.scale = torch.ones(16, device=where){mark}
    def __call__(self, x):
        return x * self.scale
def make(n):
    x = torch.randn(n, 16).to(device){mark}
    return x, x.sum(1)
def collate(rows):
    x, y = torch.utils.data.default_collate(rows)
    return x.to(device), y.to(device){mark}
"""
MADE = "x, y = torch.randn(9, 16).to(device), torch.zeros(9).to(device)  # !\n    data = "
PLAIN = TOP.format(mark="")
MARKED = TOP.format(mark="  # !")
BESIDE = "def beside(x):\n    window = torch.ones(3)\n    return x * (window.cuda() if x.is_cuda else window)\n"
ROWS = "return self.paths[i], i"
PAIR = "torch.utils.data.TensorDataset"


def over(data: str, sample: str = ROWS, options: str = "", top: str = PLAIN) -> str:
    return program(sample, dataset="DATA", options=options, top=top).replace("data = DATA", data)


@pytest.mark.parametrize("fixer", ["loader-workers", "loader-pin"])
@pytest.mark.parametrize(
    "text",
    [
        over(f"{MADE}{PAIR}(x, y)"),
        over(f"{MADE}Images(list(zip(x, y)))"),
        over(f"x = torch.randn(9, 16, device=device)  # !\n    y = (x > 0).long()\n    data = {PAIR}(x, y)"),
        over(f"x = torch.randn(9, 16)\n    data = {PAIR}(x.cuda(), x.sum(1).cuda())  # !"),
        over(f"x, y = make(9)\n    data = {PAIR}(x, y)", top=MARKED),
        over("data = Images(paths)", "return torch.load(self.paths[i]).to(device), i  # !"),
        over("data = Images(paths)", "return torch.load(self.paths[i]).to(accelerator.device), i  # !"),
        over(f"where = accelerator.device\n    x = torch.randn(9, 16).to(where)  # !\n    data = {PAIR}(x, x.sum(1))"),
        over("data = Images(paths)", "with torch.device(device):  # !\n    return torch.tensor(i), i"),
        over("data = Images(paths, Scale(device))", "return self.transform(torch.load(self.paths[i])), i", top=MARKED),
        over("data = Images(paths)", options=", collate_fn=collate", top=MARKED),
        over("data = Images(paths)", top=f"{PLAIN}torch.set_default_device(device)  # !\n"),
    ],
    ids=[
        *("tensors", "rows", "by keyword", "by cuda", "by a function", "in a sample"),
        *("an accelerator's", "an accelerator's, by name", "in a context"),
        *("in a transform", "by the collate function", "by default"),
    ],
)
def test_neither_workers_nor_pinned_memory_for_samples_on_a_device(fixer: str, text: str) -> None:
    refused(fixer, text, "# !")


@pytest.mark.parametrize(
    "text",
    [
        over(f"x = torch.randn(9, 16)\n    data = {PAIR}(x, x.sum(1))"),
        over(f"x = (torch.randn(9, 16).to(device) * 2).cpu()\n    data = {PAIR}(x, x.sum(1))"),
        over(f"x = torch.randn(9, 16).to(torch.float64)\n    data = {PAIR}(x, x.sum(1))"),
        over("data = Images(paths)", "x = torch.load(self.paths[i])\nreturn x + torch.zeros(3, device=x.device), i"),
        over("data = Images(paths)", "return beside(torch.load(self.paths[i])), i", top=PLAIN + BESIDE),
        over("data = Images(paths, lambda x: x * 2)\n    x = torch.zeros(1).to(device)"),
        over("data = Images(paths)", "return torch.load(self.paths[i]).to('cpu'), i"),
        over("data = Images(paths)", top='torch.set_default_device("cpu")\n'),
        over("data = Images(paths)", "x = torch.load(self.paths[i])\nreturn x.to(self.scale.dtype), i"),
        over(
            "net = Net().to(device)\n    data = Images(paths, net.size)", top=f"{PLAIN}class Net(nn.Module): size = 3\n"
        ),
        over("net = nn.DataParallel(nn.Linear(1, 1)).cuda()\n    data = Images(paths, net.size)"),
    ],
    ids=[
        "plain",
        "back on the host",
        "another format",
        "where another tensor is",
        "if another tensor is there",
        "another of that name",
        "the host by name",
        "by default",
        "another tensor's format",
        "a module",
        "a container of modules",
    ],
)
def test_workers_for_samples_on_the_host(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)
