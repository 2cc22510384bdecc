"""Programs as people write them every day: options that are printed, samplers of their own, counters, logs."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "everyday"

LOADED = """
import argparse, json, logging, random
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

<top>
torch.manual_seed(0)
random.seed(0)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
<loaders>
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    <start>
    for x, y in train:
        x, y = x.to(device), y.to(device)
        <before_step>
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        <after_step>
    <end>
"""

OPTIONS = 'parser = argparse.ArgumentParser()\nparser.add_argument("--workers", type=int, default=0)\nparser.add_argument("--batch", type=int, default=8)\n'
FROM_OPTIONS = "train = DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=args.workers)"
PLAIN = "train = DataLoader(data, batch_size=8, shuffle=True)"
LAST = {"end": 'print(epoch, f"{loss.item():.6f}")'}

SHOWN = {
    "printed": f"{OPTIONS}args = parser.parse_args()\nprint(args)",
    "formatted": f'{OPTIONS}args = parser.parse_args()\nprint(f"options: {{args}}")',
    "written": f'{OPTIONS}args = parser.parse_args()\nwith open("options.json", "w") as file:\n    json.dump(vars(args), file)',
    "one_by_one": f'{OPTIONS}args = parser.parse_args()\nfor name in ("batch", "workers"):\n    print(name, getattr(args, name))',
    "alone": f'{OPTIONS}args = parser.parse_args()\nprint("workers", args.workers)',
    "in_a_name": f'{OPTIONS}args = parser.parse_args()\nopen(f"run{{args.workers}}.txt", "w").close()',
    "copied": f"{OPTIONS}args = parser.parse_args()\nsettings = {{**args.__dict__, 'seed': 0}}\nprint(settings)",
}

ATTRIBUTES = {
    "items": "print({name: value for name, value in train.__dict__.items() if isinstance(value, int)})",
    "by_names": 'for name in ("batch_size", "num_workers", "pin_memory"):\n    print(name, getattr(train, name))',
    "one": 'print(train.num_workers, getattr(train, "pin_memory"))',
    "members": "import inspect\nprint([each for each in inspect.getmembers(train) if isinstance(each[1], int)])",
}

SAMPLERS = {
    "turn_by_turn": """
        class Buckets:
            def __len__(self):
                return 12

            def __iter__(self):
                order = list(range(96))
                random.shuffle(order)
                while order:
                    size = random.choice([4, 8])
                    yield order[:size]
                    order = order[size:]
        """,
    "by_a_helper": """
        class Buckets:
            def __len__(self):
                return 12

            def pick(self):
                return random.sample(range(96), 8)

            def __iter__(self):
                for _ in range(12):
                    yield self.pick()
        """,
    "by_an_expression": """
        class Buckets:
            def __len__(self):
                return 12

            def __iter__(self):
                return iter(random.sample(range(96), 8) for _ in range(12))
        """,
}

COUNTERS = {
    "together": (
        "correct = seen = 0\ntotal = average = 0.0",
        "total += loss.item()\ncorrect += (scores.argmax(1) == y).sum().item()\nseen += y.size(0)",
        'print(f"{total / len(train):.6f} {100.0 * correct / seen:.2f} % ({correct}/{seen})", average)',
    ),
    "in_a_row": (
        "total, correct, seen = 0.0, 0, 0",
        "total += loss.item() * y.size(0)\ncorrect += (scores.argmax(1) == y).sum().item()\nseen += len(y)",
        'print(epoch, round(total / seen, 6), f"{correct / seen:.4f}")',
    ),
}

SORTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
groups = [[torch.randint(1, 20, (int(size),)) for size in torch.randint(2, 9, (8,))] for _ in range(8)]


class Groups(Dataset):
    def __len__(self):
        return len(groups)

    def __getitem__(self, index):
        return groups[index]


def collate(batch):
    batch.sort(key=len, reverse=True)
    return nn.utils.rnn.pad_sequence(batch, batch_first=True)


loader = DataLoader(Groups(), batch_size=None, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.6f}")
print([len(each) for each in groups[0]])
"""

TOGETHER = """
import itertools
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
labelled = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8, shuffle=True)
others = DataLoader(TensorDataset(torch.randn(96, 6)), batch_size=16, shuffle=True)
<opened>
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for <batch> in <source>:
        <next>
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss = loss + 0.1 * model(u.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.6f}")
"""
OPENED = {
    "zip": {"opened": "", "batch": "(x, y), (u,)", "source": "zip(labelled, others)", "next": ""},
    "cycle": {
        "opened": "endless = itertools.cycle(others)",
        "batch": "x, y",
        "source": "labelled",
        "next": "(u,) = next(endless)",
    },
    "two_iterators": {
        "opened": "",
        "batch": "step",
        "source": "range(6)",
        "next": "if step == 0:\n    first = iter(labelled)\n    second = iter(others)\nx, y = next(first)\n(u,) = next(second)",
    },
}

READS = {
    "all": (
        "print({name: value for name, value in train.__dict__.items() if isinstance(value, int)})",
        ("loader-workers", "loader-pin"),
    ),
    "pinned": ("print(epoch, train.pin_memory)", ("loader-pin",)),
    "asserted": ("assert train.num_workers == 0\nprint(epoch)", ("loader-workers",)),
    "size": ("print(epoch, train.batch_size, len(train))", ()),
}

REPORT = """
import gc, os


def settings():
    return {
        "benchmark": torch.backends.cudnn.benchmark,
        "precision": torch.get_float32_matmul_precision(),
        "collects": gc.isenabled(),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF", ""),
    }


print(settings())
"""
ENVIRONMENT = """
import os

with open("environment.txt", "w") as file:
    file.writelines(f"{name}={value}\\n" for name, value in sorted(os.environ.items()) if "_" in name)
"""

CHOSEN = {
    "conditional": "options = {'num_workers': 1, 'pin_memory': True} if torch.cuda.is_available() else {}",
    "update": "options = {}\nif torch.cuda.is_available():\n    options.update({'num_workers': 1, 'pin_memory': True})",
}

COMPILED = """
import logging
import torch
from torch import nn

<level>
log = logging.getLogger("train")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 24), nn.Linear(24, 1)

    def forward(self, x):
        log.debug("shape %s", tuple(x.shape))
        hidden = torch.relu(self.first(x))
        <message>
        return self.second(hidden)


model = torch.compile(Net(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = (model(torch.randn(8, 6)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("step %d %.5f", step, loss.item())
"""

SPECTRAL = """
import torch
from torch import nn

torch.manual_seed(0)


class Spectral(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(channels, channels, 4, dtype=torch.cfloat))

    def forward(self, x):
        modes = torch.fft.rfft(x)
        out = torch.zeros_like(modes)
        out[:, :, :4] = torch.einsum("bix,iox->box", modes[:, :, :4], self.weight)
        return torch.fft.irfft(out, n=x.size(-1))


model = nn.Sequential(nn.Conv1d(1, 8, 1), Spectral(8), nn.GELU(), nn.Conv1d(8, 1, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(8):
    x = torch.randn(4, 1, 32)
    loss = (model(x) - x.roll(3, -1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
"""

RANKS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), <norm>nn.ReLU(), nn.Linear(12, 1))<options>)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
accumulate = 3
for step in range(15):
    loss = (model(torch.randn(8, 6)) - 1).square().mean() / accumulate
    loss.backward()
    if (step + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
model.eval()
with torch.no_grad():
    print(f"{model(torch.ones(2, 6)).sum().item():.6f}")
dist.barrier()
dist.destroy_process_group()
"""


def programs() -> Iterator[Program]:
    """All of the family."""
    for name, top in SHOWN.items():
        text = fill(LOADED, top=top, loaders=FROM_OPTIONS, start="", before_step="", after_step="", **LAST)
        yield Program(f"every_options_{name}", FAMILY, text, edited=frozenset({"loader-workers"}))
    for name, parts in OPENED.items():
        left = {"loader-workers": "the loaders draw their orders in turn"}
        yield Program(f"every_loaders_{name}", FAMILY, fill(TOGETHER, **parts), left_alone=left)
    for name, options in CHOSEN.items():
        loaders = f"{options}\ntrain = DataLoader(data, batch_size=8, shuffle=True, **options)"
        text = fill(LOADED, top="", loaders=loaders, start="", before_step="", after_step="", **LAST)
        left = {"loader-pin": "batches are pinned on CUDA, and need not be on the CPU"}
        edited = frozenset({"nonblocking-copies"})
        yield Program(f"every_loader_options_{name}", FAMILY, text, edited=edited, left_alone=left)
    config = "class Config:\n    workers = 0\n    pin = False\n\n\nprint({k: v for k, v in vars(Config).items() if k[0] != '_'})"
    loaders = "train = DataLoader(data, batch_size=8, shuffle=True, num_workers=Config.workers, pin_memory=Config.pin)"
    yield Program(
        "every_loader_config_shown",
        FAMILY,
        fill(LOADED, top=config, loaders=loaders, start="", before_step="", after_step="", **LAST),
        edited=frozenset({"loader-workers"}),
        left_alone={"loader-pin": "the program prints the whole of its options"},
    )
    left = dict.fromkeys(
        ("loader-workers", "loader-pin", "nonblocking-copies"), "the program prints what the loader has"
    )
    for name, shown in ATTRIBUTES.items():
        loaders = f"{PLAIN}\n{shown}"
        text = fill(LOADED, top="", loaders=loaders, start="", before_step="", after_step="", **LAST)
        yield Program(f"every_loader_attributes_{name}", FAMILY, text, left_alone=left)
    for name, (end, refused) in READS.items():
        text = fill(LOADED, top="", loaders=PLAIN, start="", before_step="", after_step="", end=end)
        alone = dict.fromkeys(refused, "the program reads the option of the loader")
        edited = frozenset({"loader-workers", "loader-pin"}) - set(refused)
        yield Program(f"every_loader_read_{name}", FAMILY, text, edited=edited, left_alone=alone)
    end = "print(epoch, json.dumps(settings()))"
    text = fill(LOADED, top=REPORT, loaders=PLAIN, start="", before_step="", after_step="", end=end)
    settings = ("allow-tf32", "cudnn-benchmark", "expandable-segments", "gc-schedule")
    left = dict.fromkeys(settings, "the program prints the setting")
    yield Program("every_settings_printed", FAMILY, text, edited=frozenset({"loader-workers"}), left_alone=left)
    text = fill(LOADED, top=ENVIRONMENT, loaders=PLAIN, start="", before_step="", after_step="", end="print(epoch)")
    left = {"expandable-segments": "the program writes its whole environment"}
    yield Program("every_environment_written", FAMILY, text, left_alone=left)
    for name, sampler in SAMPLERS.items():
        text = fill(
            LOADED,
            top=sampler,
            loaders="train = DataLoader(data, batch_sampler=Buckets())",
            start="",
            before_step="if random.random() < 0.2:\n    continue",
            after_step="",
            **LAST,
        )
        left = dict.fromkeys(("loader-workers", "loader-prefetch"), "the sampler draws beside training")
        yield Program(f"every_sampler_{name}", FAMILY, text, left_alone=left)
    for name, (start, after, end) in COUNTERS.items():
        text = fill(LOADED, top="", loaders=PLAIN, start=start, before_step="", after_step=after, end=end)
        yield Program(f"every_counters_{name}", FAMILY, text, edited=frozenset({"defer-item"}))
    row = f"{PLAIN.replace('train =', 'train, test =')}, DataLoader(data, batch_size=32)"
    text = fill(LOADED, top="", loaders=row, start="", before_step="", after_step="", **LAST)
    yield Program("every_loaders_in_a_row", FAMILY, text, edited=frozenset({"loader-workers", "loader-pin"}))
    left = {"loader-workers": "the program prints groups that its collate function has sorted in place"}
    yield Program("every_collate_sorts_groups", FAMILY, fill(SORTED), left_alone=left)
    for name, level, message in (
        ("logged", 'logging.basicConfig(filename="train.log", level=logging.DEBUG)', ""),
        ("printed", "", 'print("mean", f"{hidden.mean().item():.4f}")'),
    ):
        left = {"remove-graph-break": "the message is shown"} if level else {}
        yield Program(f"every_message_{name}", FAMILY, fill(COMPILED, level=level, message=message), left_alone=left)
    yield Program(
        "every_complex_weights",
        FAMILY,
        fill(SPECTRAL),
        left_alone={"fused-optimizer": "takes no complex numbers"},
    )
    for name, norm, options in (
        ("normalised", "nn.BatchNorm1d(12), ", ""),
        ("own_statistics", "nn.BatchNorm1d(12), ", ", broadcast_buffers=False"),
        ("plain", "", ""),
    ):
        left = {"no-sync": "running statistics are sent less often"} if name == "normalised" else {}
        edited = frozenset({"no-sync"})
        text = fill(RANKS, norm=norm, options=options)
        yield Program(f"every_ranks_{name}", FAMILY, text, edited=edited, left_alone=left, ranks=2)
