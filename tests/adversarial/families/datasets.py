"""Programs whose datasets hold state: what workers would copy, and what those that live on would not see."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "loaders"
_SHARED = "loader-workers", "persistent-workers"

MAIN = """
import io, json, os, random, sqlite3, struct, tarfile, zipfile
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

<module>


class Samples(Dataset):
    def __init__(self, n=192):
        g = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(n, 8, generator=g), torch.randn(n, generator=g)
        <init>

    def __len__(self):
        return len(self.x)

    <methods>

    def __getitem__(self, i):
        <get>


def main():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    data = Samples()
    loader = DataLoader(data, batch_size=8, shuffle=True<options>)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(3):
        <epoch_start>
        for step, (x, y) in enumerate(loader):
            loss = (model(x).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            <in_step>
        print(epoch, f"{loss.item():.6f}")
        <epoch_end>
    <end>
    print("sum", float(sum(p.double().abs().sum() for p in model.parameters())))


if __name__ == "__main__":
    main()
"""

TRAINER = """
import io, json, os, random, sqlite3, struct, tarfile, zipfile
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

<module>


class Samples(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(4)
        self.x, self.y = torch.randn(n, 8, generator=g), torch.randn(n, generator=g)
        <init>

    def __len__(self):
        return len(self.x)

    <methods>

    def __getitem__(self, i):
        <get>


class Trainer:
    def __init__(self, data):
        self.data = data
        self.loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=0<options>)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def epoch(self, epoch):
        data = self.data
        <epoch_start>
        for step, (x, y) in enumerate(self.loader):
            loss = (self.model(x).squeeze(1) - y).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            <in_step>
        print(epoch, f"{loss.item():.6f}")
        <epoch_end>

    def fit(self):
        data = self.data
        for epoch in range(3):
            self.epoch(epoch)
        <end>


if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    Trainer(Samples()).fit()
"""

PLAIN = "return self.x[i], self.y[i]"
STATES: dict[str, tuple[dict[str, str], str]] = {
    "length_set": (
        {
            "init": "self.length = 2",
            "get": "x = self.x[i].clone()\nx[self.length:] = 0\nreturn x, self.y[i]",
            "in_step": "if step % 5 == 4:\n    data.length = min(8, data.length + 1)",
        },
        "the loop sets an attribute of the dataset",
    ),
    "set_epoch": (
        {
            "init": "self.epoch = 0",
            "methods": "def set_epoch(self, epoch):\n    self.epoch = epoch",
            "get": "return self.x[i] * (1 + self.epoch), self.y[i]",
            "epoch_end": "data.set_epoch(epoch + 1)",
        },
        "a method changes the dataset between epochs",
    ),
    "setattr": (
        {
            "init": "self.gain = 1.0",
            "get": "return self.x[i] * self.gain, self.y[i]",
            "in_step": "setattr(data, 'gain', 1.0 + step / 10)",
        },
        "setattr changes the dataset in each step",
    ),
    "global_number": (
        {
            "module": "NOISE = 0.0",
            "get": "return self.x[i] + NOISE, self.y[i]",
            "epoch_start": "globals()['NOISE'] = 0.1 * epoch",
        },
        "a global is read for each sample and set in each epoch",
    ),
    "config_object": (
        {
            "module": "class Config:\n    scale = 1.0",
            "get": "return self.x[i] * Config.scale, self.y[i]",
            "epoch_start": "Config.scale = 1.0 + epoch",
        },
        "a config class is read for each sample and changed in each epoch",
    ),
    "config_dictionary": (
        {
            "module": 'options = {"drop": 0}',
            "get": "x = self.x[i].clone()\nx[: options['drop']] = 0\nreturn x, self.y[i]",
            "epoch_start": "options['drop'] = epoch",
        },
        "a dictionary is read for each sample and changed in each epoch",
    ),
    "environment": (
        {
            "get": "return self.x[i] * float(os.environ.get('GAIN', '1')), self.y[i]",
            "epoch_start": "os.environ['GAIN'] = str(1 + epoch)",
        },
        "the environment is read for each sample and changed in each epoch",
    ),
    "counter": (
        {"init": "self.read = 0", "get": f"self.read += 1\n{PLAIN}", "end": "print('read', data.read)"},
        "the dataset counts its reads",
    ),
    "noted": (
        {
            "init": "self.bad = []",
            "get": f"if self.y[i] > 1:\n    self.bad.append(int(i))\n{PLAIN}",
            "end": "with open('bad.json', 'w') as f:\n    json.dump(data.bad, f)\nprint(len(data.bad))",
        },
        "the dataset notes indices that the end writes",
    ),
    "noted_in_global": (
        {
            "module": "SEEN = {}",
            "get": f"SEEN[int(i)] = SEEN.get(int(i), 0) + 1\n{PLAIN}",
            "end": "print('seen', len(SEEN), sum(SEEN.values()))",
        },
        "each sample is counted in a global",
    ),
    "counter_drives": (
        {"init": "self.turn = 0", "get": "self.turn += 1\nreturn self.x[i] / (1 + self.turn % 3), self.y[i]"},
        "a sample depends on how many were read",
    ),
    "generator": (
        {
            "init": "self.rng = np.random.default_rng(5)",
            "get": "return self.x[i] + float(self.rng.normal()), self.y[i]",
        },
        "the dataset keeps a generator",
    ),
    "torch_generator": (
        {
            "init": "self.g = torch.Generator().manual_seed(7)",
            "get": "return self.x[i] + torch.randn(8, generator=self.g), self.y[i]",
        },
        "the dataset keeps a generator of torch",
    ),
    "random": (
        {"get": "return self.x[i] * random.random(), self.y[i]"},
        "a sample draws from Python's generator",
    ),
    "torch_random": (
        {"get": "return self.x[i] + 0.1 * torch.randn(8), self.y[i]"},
        "a sample draws from torch's generator",
    ),
    "file_handle": (
        {
            "init": "self.x.numpy().tofile('x.bin')\nself.file = open('x.bin', 'rb')",
            "get": "self.file.seek(int(i) * 32)\nx = torch.tensor(struct.unpack('8f', self.file.read(32)))\nreturn x, self.y[i]",
        },
        "an open file is shared by all workers",
    ),
    "zip_handle": (
        {
            "init": "with zipfile.ZipFile('x.zip', 'w') as z:\n    for k in range(n):\n"
            "        z.writestr(zipfile.ZipInfo(f'{k}'), self.x[k].numpy().tobytes())\nself.zip = zipfile.ZipFile('x.zip')",
            "get": "x = torch.from_numpy(np.frombuffer(self.zip.read(str(int(i))), dtype=np.float32).copy())\nreturn x, self.y[i]",
        },
        "an open zip file is shared by all workers",
    ),
    "database": (
        {
            "init": "self.db = sqlite3.connect('x.db')\nself.db.execute('create table if not exists t (k integer primary key, v blob)')\n"
            "self.db.executemany('insert or replace into t values (?, ?)', [(k, self.x[k].numpy().tobytes()) for k in range(n)])\nself.db.commit()",
            "get": "row = self.db.execute('select v from t where k = ?', (int(i),)).fetchone()\n"
            "return torch.from_numpy(np.frombuffer(row[0], dtype=np.float32).copy()), self.y[i]",
        },
        "a database connection is shared by all workers",
    ),
    "weights_by_loss": (
        {
            "init": "self.weight = torch.ones(n)",
            "get": "return self.x[i] * self.weight[i], self.y[i]",
            "epoch_end": "data.weight *= 0.5 + loss.item()",
        },
        "what the loss says goes back into the dataset",
    ),
    "labels_replaced": (
        {"get": PLAIN, "epoch_end": "data.y = 0.5 * data.y"},
        "the program replaces the labels in each epoch",
    ),
    "labels_by_another_name": (
        {"get": PLAIN, "epoch_start": "labels = data.y", "in_step": "labels[step] *= 0.5"},
        "the loop changes the labels by another name that it has for them",
    ),
    "schedule_given_later": (
        {
            "module": "class Ramp:\n    turn = 0\n\n    def step(self):\n        self.turn += 1",
            "init": "self.ramp = None",
            "get": "gain = 1 + self.ramp.turn / 10 if self.ramp else 1.0\nreturn self.x[i] * gain, self.y[i]",
            "epoch_start": "if epoch == 0:\n    ramp = Ramp()\n    data.ramp = ramp",
            "in_step": "data.ramp.step()",
        },
        "the dataset is given an object that each step changes",
    ),
    "asks_for_its_worker": (
        {
            "get": "worker = torch.utils.data.get_worker_info()\n"
            "return self.x[i] + (0.0 if worker is None else 0.1 * worker.id), self.y[i]"
        },
        "a sample depends on the worker that makes it",
    ),
    "batches_of_its_own": (
        {
            "methods": "def __getitems__(self, indices):\n    return [(2 * self.x[i], self.y[i]) for i in indices]",
            "get": PLAIN,
        },
        "",
    ),
    "workers_shown": (
        {"get": PLAIN, "end": "print(vars(<loader>)['num_workers'])"},
        "the program prints how many workers its loader has",
    ),
    "buffer_reused": (
        {
            "init": "self.buffer = torch.empty(8)",
            "get": "self.buffer.copy_(self.x[i] * 2)\nreturn self.buffer.clone(), self.y[i]",
        },
        "",
    ),
    "plain": ({"get": PLAIN}, ""),
    "seeded_by_index": (
        {"get": "g = torch.Generator().manual_seed(int(i))\nreturn self.x[i] + torch.randn(8, generator=g), self.y[i]"},
        "",
    ),
    "memory_map": (
        {
            "init": "np.save('x.npy', self.x.numpy())\nself.map = np.load('x.npy', mmap_mode='r')",
            "get": "return torch.from_numpy(np.array(self.map[i])), self.y[i]",
        },
        "",
    ),
    "encoder_shrinks": (
        {
            "module": "torch.manual_seed(7)\nencoder = nn.Linear(8, 8).requires_grad_(False)",
            "get": "return encoder(self.x[i]), self.y[i]",
            "epoch_end": "encoder.weight.data.mul_(0.9)",
        },
        "the weights of a module that samples call change between epochs",
    ),
    "encoder_learns": (
        {
            "module": "torch.manual_seed(7)\nencoder = nn.Linear(8, 8)",
            "get": "return encoder(self.x[i]).detach(), self.y[i]",
            "in_step": "with torch.no_grad():\n    for p in encoder.parameters():\n        p.mul_(0.99)",
        },
        "each step changes a module that samples call",
    ),
    "cache_counted": (
        {
            "module": "import functools\n\n\n@functools.lru_cache(maxsize=None)\ndef factor(i):\n    return 1 + i * 0.01",
            "get": "return self.x[i] * factor(int(i)), self.y[i]",
            "end": "print(factor.cache_info().hits)",
        },
        "the program prints what a cache in the samples' code counted",
    ),
    "collated_in_place": (
        {
            "module": "def collate(rows):\n    for x, y in rows:\n        x += 1\n    return tuple(map(torch.stack, zip(*rows)))",
            "init": "self.rows = [(x.clone(), y) for x, y in zip(self.x, self.y)]",
            "get": "row = self.rows[i]\nreturn row[0], row[1]",
            "options": ", collate_fn=collate",
        },
        "the collate function changes what the dataset keeps",
    ),
    "changed_when_loaded": (
        {
            "module": "class Center:\n    def __call__(self, x):\n        x -= x.mean()\n        return x",
            "init": "self.rows = [{'at': k, 'y': y} for k, y in enumerate(self.y)]\nself.center = Center()",
            "get": "row = self.rows[i]\nx = torch.arange(8.0) * row['at'] / 99\nreturn self.center(x), row['y']",
        },
        "",
    ),
    "opened_lazily": (
        {
            "init": "self.x.numpy().tofile('x.bin')",
            "get": "with open('x.bin', 'rb') as f:\n    f.seek(int(i) * 32)\n    x = torch.tensor(struct.unpack('8f', f.read(32)))\nreturn x, self.y[i]",
        },
        "",
    ),
}


_BETWEEN_EPOCHS = frozenset(
    {
        "encoder_shrinks",
        "set_epoch",
        "global_number",
        "config_object",
        "config_dictionary",
        "weights_by_loss",
        "labels_replaced",
    }
)


def programs() -> Iterator[Program]:
    """All members of the family."""
    slots = dict.fromkeys(("module", "init", "methods", "epoch_start", "in_step", "epoch_end", "end", "options"), "")
    for loop, template in {"function": MAIN, "trainer": TRAINER}.items():
        for name, (parts, why) in STATES.items():
            left = dict.fromkeys(_SHARED, why) if why else {}
            if name in _BETWEEN_EPOCHS:
                left = {}  # workers that are started for each epoch see what changed before it
            if name in ("random", "torch_random", "generator", "torch_generator"):
                left = {}  # workers draw others, which changes the training and is said
            if name == "workers_shown":
                left = {"loader-workers": why}
            if name in ("noted", "noted_in_global", "counter", "file_handle", "zip_handle", "database"):
                left = {"loader-workers": why}
            its = "loader" if loop == "function" else "self.loader"
            text = fill(template, **{**slots, **parts}, loader=its)
            edited = frozenset({"loader-workers"} if name == "changed_when_loaded" else ())
            yield Program(f"data_{loop}_{name}", FAMILY, text, edited, left_alone=left)
