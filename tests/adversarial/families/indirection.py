"""Programs that change, keep or show something by a way that does not name it: a decorator, a cache, a list of all."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.families.datasets import MAIN, PLAIN, TRAINER
from adversarial.families.deferred_reads import SCRIPT
from adversarial.families.deferred_reads import TRAINER as LOGGED_BY_CLASS
from adversarial.program import Program, fill

FAMILY = "indirection"

HELD = "holder = []\n\n\ndef rate():\n    return 100 * holder[0].param_groups[0]['lr'] if holder else 1.0"

DATASETS: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "rate_of_optimizer": (
        {
            "module": HELD,
            "get": "return self.x[i] * rate(), self.y[i]",
            "epoch_start": "if not holder:\n    holder.append(<optimizer>)",
            "in_step": "for group in <optimizer>.param_groups:\n    group['lr'] *= 0.98",
        },
        ("loader-workers",),
        "a sample is scaled by the learning rate, which each step lowers",
    ),
    "rate_of_schedule": (
        {
            "module": HELD,
            "get": "return self.x[i] * rate(), self.y[i]",
            "epoch_start": "if not holder:\n    holder.append(<optimizer>)\n"
            "    schedule = torch.optim.lr_scheduler.ExponentialLR(<optimizer>, 0.98)\n    holder.append(schedule)",
            "in_step": "holder[1].step()",
        },
        ("loader-workers",),
        "a sample is scaled by the learning rate, which a schedule lowers in each step",
    ),
    "wrapper_sets": (
        {
            "module": "class Wrapper(Dataset):\n    def __init__(self, inner):\n"
            "        object.__setattr__(self, 'inner', inner)\n\n    def __len__(self):\n        return len(self.inner)\n\n"
            "    def __getitem__(self, i):\n        return self.inner[i]\n\n    def __getattr__(self, name):\n"
            "        return getattr(self.inner, name)\n\n    def __setattr__(self, name, value):\n"
            "        setattr(self.inner, name, value)",
            "init": "self.level = 0",
            "get": "return self.x[i] + self.level, self.y[i]",
            "epoch_start": "wrapped = Wrapper(data)",
            "in_step": "wrapped.level += 1",
        },
        ("loader-workers",),
        "the attribute is set through a wrapper whose `__setattr__` passes it on",
    ),
    "object_sets": (
        {
            "init": "self.level = 0",
            "get": "return self.x[i] + self.level, self.y[i]",
            "in_step": "object.__setattr__(data, 'level', step)",
        },
        ("loader-workers",),
        "the attribute is set without the dataset's own `__setattr__`",
    ),
    "part_returned": (
        {
            "init": "self.state = {'level': 0}",
            "methods": "def settings(self):\n    return self.state",
            "get": "return self.x[i] + self.state['level'], self.y[i]",
            "in_step": "settings = data.settings()\nsettings.update(level=step)",
        },
        ("loader-workers",),
        "a method returns the dictionary that each step changes",
    ),
    "counted_by_decorator": (
        {
            "module": "def counted(function):\n    def inner(*args):\n        inner.calls += 1\n        return function(*args)\n\n"
            "    inner.calls = 0\n    return inner\n\n\n@counted\ndef read(x):\n    return 2 * x",
            "get": "return read(self.x[i]), self.y[i]",
            "end": "print('calls', read.calls)",
        },
        ("loader-workers",),
        "a decorator counts the calls for samples",
    ),
    "counted_by_constructor": (
        {
            "module": "class Row:\n    made = 0\n\n    def __init__(self, x):\n        Row.made += 1\n        self.x = x",
            "get": "return Row(self.x[i]).x, self.y[i]",
            "end": "print('rows', Row.made)",
        },
        ("loader-workers",),
        "the constructor of what a sample makes counts",
    ),
    "cached_and_changed": (
        {
            "module": "import functools",
            "methods": "@functools.lru_cache(maxsize=None)\ndef load(self, i):\n    return self.x[i].clone()",
            "get": "return self.load(int(i)).add_(1), self.y[i]",
        },
        ("loader-workers",),
        "a sample changes what a cache keeps",
    ),
    "memory_asked": (
        {"get": PLAIN, "in_step": "if step == 0:\n    print(x.is_shared(), x.is_pinned())"},
        ("loader-workers", "loader-pin"),
        "the program shows in what memory a batch lies",
    ),
    "children_counted": (
        {
            "module": "import multiprocessing",
            "get": PLAIN,
            "in_step": "if step == 2:\n    print(len(multiprocessing.active_children()))",
        },
        ("loader-workers",),
        "the program counts its child processes",
    ),
    "batch_resized": (
        {"get": PLAIN, "in_step": "x.resize_(100, 8)\nif step == 0:\n    print(x.shape)"},
        ("loader-workers",),
        "memory that a worker has sent cannot be resized",
    ),
    "worker_announced": (
        {
            "module": "def begin(worker):\n    print('worker', worker)",
            "get": PLAIN,
            "options": ", worker_init_fn=begin",
        },
        ("loader-workers",),
        "a function prints where a worker begins",
    ),
}
"""Parts of a dataset's program, the fixers that must leave it alone, and why."""

TWO_FILES = """
import torch
from torch import nn
from torch.utils.data import DataLoader

import changes
from data import Options, Samples


def main():
    torch.manual_seed(0)
    options = Options(gain=2.0)
    options.samples = 96
    loader = DataLoader(Samples(options), batch_size=8, shuffle=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            loss = (model(x).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            <in_step>
        print(epoch, f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
"""
DATA = """
import torch
from torch.utils.data import Dataset

import changes


class Options(dict):
    def __getattr__(self, name):
        return self[name]

    def __setattr__(self, name, value):
        self[name] = value


class Samples(Dataset):
    def __init__(self, options):
        self.options = options
        self.x, self.y = torch.randn(options.samples, 8), torch.randn(options.samples)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return changes.scaled(self.x[i], self.options.gain), self.y[i]
"""
CHANGES = "def scaled(x, gain):\n    return gain * x\n"

CHECKED = """
    def __setattr__(self, name, value):
        if isinstance(value, float) and value < 0:
            raise ValueError(name)
        super().__setattr__(name, value)
"""

LISTED = """
class Meter:
    everyone = []

    def __init__(self):
        self.total = 0.0
        Meter.everyone.append(self)

    def update(self, value):
        self.total += value
"""

LOGS: dict[str, tuple[dict[str, str], dict[str, str], tuple[str, ...]]] = {
    "meter_listed": (
        {
            "before": f"{LISTED}\n\nmeter = Meter()",
            "read": "meter.update(loss.item())",
            "epoch_end": "print(epoch, [each.total for each in Meter.everyone])",
        },
        {"defer-item": "the class lists its meters, and the list is printed"},
        (),
    ),
    "lists_by_name": (
        {
            "epoch_start": 'log = {"loss": [], "right": []}',
            "read": 'log["loss"].append(loss.item())\nlog["right"].append((logits.argmax(1) == y).sum().item())',
            "epoch_end": "print(epoch, {name: sum(values) / len(values) for name, values in log.items()})",
        },
        {},
        ("defer-item",),
    ),
    "sums_by_name": (
        {
            "epoch_start": 'sums = {"loss": 0.0, "seen": 0}',
            "read": 'sums["loss"] += loss.item() * y.size(0)\nsums["seen"] += y.size(0)',
            "in_step": 'if step % 4 == 3:\n    print(step, sums["loss"] / sums["seen"])',
            "epoch_end": "print(epoch, sums)",
        },
        {},
        ("defer-item",),
    ),
    "one_list_by_two_names": (
        {
            "before": "both = []",
            "epoch_start": 'log = {"loss": both, "right": both}',
            "read": 'log["loss"].append(loss.item())\nlog["right"].append((logits.argmax(1) == y).sum().item())',
            "epoch_end": "print(epoch, both[-4:])",
        },
        {"defer-item": "two names are of one list"},
        (),
    ),
    "options_in_json": (
        {
            "end": 'with open("options.json", "w") as file:\n'
            '    json.dump({name: value for name, value in optimizer.state_dict()["param_groups"][0].items()}, file)',
        },
        {"fused-optimizer": "all options of the optimizer are written, `fused` among them"},
        (),
    ),
}
"""Parts of a script that logs, what must leave it alone and why, and what is expected to edit it."""


def programs() -> Iterator[Program]:
    """All members of the family."""
    slots = dict.fromkeys(("module", "init", "methods", "epoch_start", "in_step", "epoch_end", "end", "options"), "")
    for loop, template in {"function": MAIN, "trainer": TRAINER}.items():
        of = "self." if loop == "trainer" else ""
        for name, (parts, refused, why) in DATASETS.items():
            text = fill(template, **{**slots, **parts}, optimizer=f"{of}optimizer")
            yield Program(f"way_{loop}_{name}", FAMILY, text, left_alone=dict.fromkeys(refused, why))
    more = {"data.py": fill(DATA), "changes.py": CHANGES}
    replaced = "changes.scaled = (lambda power: lambda x, gain: gain * x * 0.9**power)(step)"
    left = {"loader-workers": "each step replaces a function of a module that samples call"}
    yield Program("way_files_function_replaced", FAMILY, fill(TWO_FILES, in_step=replaced), left_alone=left, more=more)
    text = fill(TWO_FILES, in_step="")
    yield Program("way_files_options", FAMILY, text, frozenset({"loader-workers"}), more=more)
    slots = dict.fromkeys(("before", "epoch_start", "in_step", "end"), "")
    text = fill(LOGGED_BY_CLASS, zero="0.0", seed="3", samples="116", read="", epoch_end="", **slots)
    text = text.replace("    def fit(", CHECKED + "\n    def fit(")
    left = {"defer-item": "the class looks at each number that it is given"}
    yield Program("way_log_checked_when_set", FAMILY, text, left_alone=left)
    slots = dict.fromkeys(("before", "epoch_start", "in_step", "epoch_end", "end", "read"), "")
    for name, (parts, left, edited) in LOGS.items():
        text = fill(SCRIPT, zero="0.0", seed="3", samples="116", **{**slots, **parts})
        yield Program(f"way_log_{name}", FAMILY, text, frozenset(edited), left_alone=left)
