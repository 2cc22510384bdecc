"""State that a dataset shares with the program keeps loading as it is, and the line that shares it is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_programs import DATASET, MAIN, NOISY, TOP, asked, program, refused

import diagnose.cli
from diagnose.fixer import Edits, Gate

STORED = "self.x = torch.zeros(9, 16)"
LAZY = """
if self.file is None:
    self.file = h5py.File("x.h5")
return self.file["x"][i], i
"""
RECORDS = "self.file.seek(i)\nreturn self.file.read(4), i"
LOG = """NOTES = []
class Log:
    def __init__(self):
        self.transform = lambda x: NOTES.append(x)  # of the log, and of no dataset
"""
CONCAT = "from torch.utils.data import ConcatDataset\n"
PLAN = "class Plan:\n    def load(self, state):\n        self.__dict__.update(state)  # of no dataset\n"
SORTS = "def sorts(rows):\n    rows.sort(key=len)\n    return torch.stack(rows), 0\n"
OUT = "out = model_outputs()\ndef keep(parts, sample):\n    return len(parts)\n"
CURRICULUM = "class Strength:\n    value = 0.0\n    def step(self):\n        self.value += 0.1\n"


@pytest.mark.parametrize(
    "text",
    [
        program(),
        program("return self.x[i].clone()", STORED, options=", collate_fn=sorts", top=SORTS),
        program("return ROWS[i]", options=", collate_fn=sorts", top="ROWS = []\n" + SORTS),
        program("return ROWS[i]", options=", collate_fn=sorts", top="MORE = {'batch_size': 8}\nROWS = []\n" + SORTS)
        .replace("batch_size=8", "**MORE"),
        program("return self.transform(Image.open(self.paths[i]).convert('RGB')), 0", dataset="Images(paths, nn.Flatten())"),  # noqa: E501
        program("return self.x[i], i", STORED),
        program("return self.x[i].clone().mul_(2), i", STORED),
        program("x = self.x[i].clone()\nx[3:] = 0\nreturn x, i", STORED),
        program("return halved(self.x[i].clone()), 0", STORED, top="def halved(x):\n    x /= 2\n    return x\n"),
        program("return halved(self.x[i]), 0", STORED, top="def halved(x):\n    x = x / 2\n    x += 1\n    return x\n"),
        program("random.seed(i)\nreturn random.random(), i"),
        program("with torch.random.fork_rng():\n    torch.manual_seed(i)\n    return torch.rand(3), i"),
        program("before = random.getstate()\nrandom.seed(i)\nx = random.random()\nrandom.setstate(before)\nreturn x, i",
                step="random.random()"),
        program("x = self.load(i)\nx *= 2\nreturn x, i", more="def load(self, i):\n    return torch.load(self.paths[i])"),  # noqa: E501
        program("x = self.x[i].astype('f4')\nx -= 1\nreturn x, i", STORED),
        program("x = self.x[i].float()\nx = (x - x.mean()) / x.std()\nx[x > 3] = 3\nreturn x, i", STORED),
        program("x = self.x[i] * 2\nx += 1\nreturn x, i", STORED),
        program("return self.x[i], i", "with open('x.json') as f:\n    self.x = json.load(f)", top="import json\n"),
        program("return self.x[i], i", "self.x = open('x.txt').read().splitlines()"),
        program("return self.x[i], i", "self.file = h5py.File('x.h5')\nself.x = self.file['x'][:]"),
        program("return self.x[i], i", "self.file = h5py.File('x.h5')\nself.x = self.file['x'][()]"),
        program("return zlib.decompress(self.x[i]), i", "self.x = [zlib.compress(b'1')]", top="import zlib\n"),
        program("return self.x[i], i", "self.x = np.memmap('x.bin', dtype=np.float32)"),
        program("return np.load('x.npy', mmap_mode='r')[i], i"),
        program("return self.x[i], i", "self.x = np.load('x.npy', mmap_mode='r')"),
        program("return self.x[i], i", "self.x = np.load('x.npz')['x']"),
        program("sample = {'x': i}\ndel sample['y']\nreturn keep({'z': i}, 0), i", top=OUT,
                step="out['y'] = out['z'] = x"),
        program("angle = self.rotate\nreturn torch.load(self.paths[i]) * angle, i", "self.rotate = 2"),
        program("return NOISE[i], i", step="noise = x.new().resize_(3).normal_()", top="NOISE = torch.ones(9)\n"),
        program("return self.x[i], i", "self.x = list(zip(paths, range(9)))"),
        program("with open(self.paths[i], 'rb') as f:\n    return len(f.read()), i"),
        program(LAZY, "self.file = None"),
        program(NOISY, "self.strength = 1.0", dataset="Images(paths)", end="opt.strength = 2.0"),
        program(step="harden(x)", top="def harden(x):\n    paths = torch.ones(9)\n    print(len(paths), paths[0].item())\n    if paths[0] > 1:\n        paths[0] = 1\n    return paths\n"),  # noqa: E501
        program("return self.paths[i], i", dataset="ConcatDataset([Images(rows) for rows in paths])", top=CONCAT, step="for rows in [x, y]:\n    rows.mul_(2)"),  # noqa: E501
        program("return self.data[i], i", "self.data = torch.zeros(9)", step="model.weight.data.mul_(2)\nmodel.bias.data[0] = 1"),  # noqa: E501
        program(step="harden(x)", top="def harden(x):\n    paths = []\n    paths.append(x)\n    paths[0] = 1\n    return paths\n"),  # noqa: E501
        program(step="scaled(x, 3)", top="def scaled(x, n):\n    count = x.shape[0]\n    paths = count\n    paths *= n\n"),  # noqa: E501
        program(dataset="[Images(p) for i, p in enumerate(paths)][0]", step="for i, part in enumerate([x]):\n    part.mul_(2)"),  # noqa: E501
        program("return load(self.tag, i), i", "self.tag = TAG", step="shown(TAG)", top="TAG = 'a'\ndef shown(tag):\n    tag += '_' + str(9)\n    print(tag)\n"),  # noqa: E501
        program(dataset="Images(paths, kind)", step="seen[kind] = shown.append(loss.item())").replace("paths = sorted", "kind, seen, shown = 'a', {}, []\n    paths = sorted"),  # noqa: E501
        program("row = [0] + self.paths[i][:3]\nrow.extend([1, 2])\nreturn torch.tensor(row), i", top="class Vocabulary:\n    def extend(self, other):\n        self.words = other\n", dataset="Images(paths, Vocabulary())"),  # noqa: E501
        program(step="scaled(3)", top="def scaled(n):\n    paths = n\n    paths *= 2  # another variable\n    return paths\n"),  # noqa: E501
        program(NOISY, "self.strength = 1.0", step="Plan().load({})", top=PLAN),
        program(NOISY, "self.strength = 0.0", epoch="data.strength = epoch"),
        program(NOISY, "self.strength = 0", "def set_epoch(self, e):\n    self.strength = e", epoch="data.set_epoch(epoch)"),  # noqa: E501
        program("return self.data[i], i", "self.data = torch.zeros(9)", step="for p in model.parameters():\n    p.data.mul_(1)"),  # noqa: E501
        program("return self.step(i), i", more="def step(self, i):\n    return torch.load(self.paths[i])"),
        program("out = []\nout.append(i)\nreturn torch.tensor(out), i"),
        program("sample = {}\nsample['x'] = i\nreturn sample, i"),
        program(step="history = []\nhistory.append(float(loss))"),
        program(dataset="Subset(Images(paths), range(9))"),
        program("return SCALE * torch.load(self.paths[i]), i", top="SCALE = 1 / 255\n"),
        program("return self.x[i], i", STORED, step="table[step] = 0").replace("loader =", "table = data.x.clone()\n    loader ="),  # noqa: E501
        program("return self.x[i], i", STORED, options=", collate_fn=lambda rows: rows[0]"),
        program("return self.x[i], i", STORED, options=", collate_fn=stack", step="x.mul_(2)",
                top="def stack(rows):\n    return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])\n"),  # noqa: E501
        program("return torch.load(self.paths[i]), i", options=", collate_fn=lambda rows: rows[0]", step="x.mul_(2)"),
        program("return self.by_class[i % 3][0], i", "self.by_class = defaultdict(list)\nadd = self.by_class[0].append\nadd(1)",  # noqa: E501
                top="from collections import defaultdict\n"),
        program(NOISY, "self.strength = 0.0", epoch="data.strength = turn", step="turn += 1").replace("loader =", "turn = 0\n    loader ="),  # noqa: E501
        program("return self.transform(i), i", dataset="Images(paths, nn.Flatten())", end="Log()", top=LOG),
        program("return i * CFG['s'], i", top="CFG = {'s': 1}\nput = CFG.update\nput({'s': 2})\nexec('SIZE = 1')\n"),
        program("return self.x[i], i", STORED, step="model.weight.requires_grad_()"),
        program("return self.paths[i], i", step="for paths, y in loader:\n    paths.requires_grad = True"),
        program("return Box(i).i, i", top="class Box:\n    def __init__(self, i):\n        object.__setattr__(self, 'i', i)\n"),  # noqa: E501
    ],
)  # fmt: skip
def test_workers_are_given_to_a_dataset_whose_samples_depend_on_their_index_alone(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        # The program changes what samples read while batches come.
        (program(NOISY, "self.strength = 0.0", step="data.strength = 0.5  # !"), "# !"),
        (program(NOISY, "self.strength = 0.0", step="loader.dataset.strength += 0.5  # !"), "# !"),
        (program(NOISY, "self.strength = 0.0", step="setattr(data, 'strength', 0.5)  # !"), "# !"),
        (program(NOISY, "self.strength = 0.0", "def grow(self):\n    self.strength += 1  # !", step="data.grow()"), "# !"),  # noqa: E501
        (program("return self.paths[i], i", "self.items = []", step="data.paths.append('x')  # !"), "# !"),
        (program("return self.transform(i), i", step="data.transform = None  # !"), "# !"),
        (program("return i * STRENGTH, i", top="STRENGTH = 1\n", step="global STRENGTH\nSTRENGTH += 1  # !"), "# !"),
        (program("return i * CFG['s'], i", top="CFG = {'s': 1}\n", step="CFG['s'] += 1  # !"), "# !"),
        (program("return i * LEVEL.get(), i", top="from contextvars import ContextVar\nLEVEL = ContextVar('level')\n", step="LEVEL.set(2)  # !"), "# !"),  # noqa: E501
        (program("return i * cfg.s, i", top="class cfg:\n    s = 1\n", step="cfg.s += 1  # !"), "# !"),
        (program("self.transform.extend([i])  # !\nreturn i, i", top="class Vocabulary:\n    def extend(self, other):\n        self.words = other\n", dataset="Images(paths, Vocabulary())"), "# !"),  # noqa: E501
        (program("return self.transform(i), i", dataset="Images(paths, marks)", step="marks += [1]  # !").replace("paths = s", "marks = []\n    paths = s"), "# !"),  # noqa: E501
        (program("return i * self.transform.value, i", top=CURRICULUM, dataset="Images(paths, aug)", step="aug.step()")
         .replace("paths = sorted", "aug = Strength()\n    paths = sorted"), "self.value += 0.1"),
        (program("return i * self.transform['s'], i", dataset="Images(paths, cfg)", step="cfg['s'] = 2  # !")
         .replace("paths = sorted", "cfg = dict(s=1)\n    paths = sorted"), "# !"),
        (program("return self.transform(i), i", dataset="Images(paths, lambda x: x * scale)", step="scale = 2  # !")
         .replace("paths = sorted", "scale = 1\n    paths = sorted"), "# !"),
        (program(options=", collate_fn=lambda rows: rows[:size]", step="size = 4  # !").replace("paths = s", "size = 2\n    paths = s"), "# !"),  # noqa: E501
        (program("return self.transform(i), i", dataset="Images(paths, model)"), "model.parameters()"),
        (program("return self.transform(i), i", dataset="Images(paths, teacher)", step="teacher.weight.lerp_(model.weight, 0.1)  # !")  # noqa: E501
         .replace("    paths = s", "    teacher = nn.Linear(16, 1)\n    paths = s"), "# !"),
        # By a function that changes what it is given, or that is taken as a value.
        (program("return i * CFG['s'], i", top="import operator\nCFG = {'s': 1}\n", step="operator.setitem(CFG, 's', 2)  # !"), "# !"),  # noqa: E501
        (program("return i * CFG['s'], i", top="CFG = {'s': 1}\n", step="CFG.__setitem__('s', 2)  # !"), "# !"),
        (program("return i * CFG['s'], i", top="CFG = {'s': 1}\nput = CFG.update\n", step="put({'s': 2})  # !"), "# !"),
        (program(NOISY, "self.strength = 0.0", step="anneal(0.5)  # !", top="from functools import partial\n")
         .replace("loader =", "anneal = partial(setattr, data, 'strength')\n    loader ="), "# !"),
        (program("return i * self.transform['s'], i", dataset="Images(paths, CFG)", top="CFG = {'s': 1}\n",
                 step="[each.update(s=2) for each in (CFG,)]  # !"), "# !"),
        (program("return i * self.transform['s'], i", dataset="Images(paths, CFG)", top="CFG = {'s': 1}\n",
                 step="list(map(lambda each: each.update(s=2), [CFG]))  # !"), "# !"),
        (program(NOISY, "self.strength = 0.0", step="exec('data.strength = 0.5')  # !"), "# !"),
        # By another name.
        (program("return self.x[i], i", STORED, step="table[step] = 0  # !").replace("loader =", "table = data.x\n    loader ="), "# !"),  # noqa: E501
        (program("return self.x[i], i", STORED, step="table += 1  # !").replace("loader =", "table = data.x[:4].view(-1)\n    loader ="), "# !"),  # noqa: E501
        (program("return self.x[i], i", STORED, step="shift(data.x)", top="def shift(x):\n    x[0] = 1  # !\n"), "# !"),
        (program(NOISY, "self.strength = 0.0", step="vars(data)['strength'] = 0.5  # !"), "# !"),
        (program(step="Images.__getitem__ = None  # !"), "# !"),
        (program("return i * self.transform.gain, i", top="class Owner:\n    gain = 1\n    def __init__(self, paths):\n"
                 "        self.data = Images(paths, self)\n    def tick(self):\n        self.gain += 1  # !\n",
                 dataset="owner.data", step="owner.tick()").replace("data = owner", "owner = Owner(paths)\n    data = owner"), "# !"),  # noqa: E501
        (program(step="harden()", top="STORE = {'a': []}\ndef harden():\n    paths = STORE['a']\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = get_paths()\n    paths[0] = 1  # !\n"), "# !"),
        (program(step="harden(S)", top="def harden(s):\n    paths = s.pool['a']\n    paths[0] = 1  # !\n"), "# !"),
        (program(step="harden()", top="def harden():\n    for paths in PARTS:\n        paths[0] = 1  # !\n"), "# !"),
        (program(step="harden([S])", top="def harden(n):\n    paths = n\n    paths *= 2  # !\n"), "# !"),
        (program(step="harden()", top="def harden():\n    paths = torch.ones(9)\n    keep(paths[:])\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = torch.ones(9)\n    keep(torch.from_numpy(paths))\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = torch.ones(9)\n    keep(paths.numpy())\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = torch.ones(9)\n    keep(list(paths))\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = torch.ones(9)\n    keep(a=paths['a'])\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = max(POOL, key=len)\n    paths[0] = 1  # !\n"), "# !"),
        (program(step="harden()", top="def harden():\n    paths = next(iter(POOL))\n    paths[0] = 1  # !\n"), "# !"),
        (program(step="harden()", top="def harden():\n    paths = getattr(STORE, 'a')\n    paths[0] = 1  # !\n"), "# !"),  # noqa: E501
        (program(step="harden()", top="def harden():\n    paths = [POOL]\n    paths[0][0] = 1  # !\n"), "# !"),
        (program("return self.paths[i], i", dataset="ConcatDataset([Images(rows) for rows in paths])", top=CONCAT, step="for rows in paths:\n    rows.mul_(0.9)  # !"), "# !"),  # noqa: E501
        (program("return self.paths[i], i", dataset="ConcatDataset([Images(rows) for rows in paths])", top=CONCAT, step="for part in paths:\n    part[0] = 1  # !"), "# !"),  # noqa: E501
        (program("return self.paths[i], i", dataset="ConcatDataset([Images(rows) for rows in paths])", top=CONCAT, step="for at, part in enumerate(paths):\n    part[0] = 1  # !"), "# !"),  # noqa: E501
        (program("return self.paths.weight.values[i], i", step="data.paths.weight.values[0] = 1  # !"), "# !"),
        (program("return self.paths.values[i], i", step="data.paths.weight.values[0] = 1  # !"), "# !"),
        # What the dataset is given later.
        (program("return i * self.more.value, i", "self.more = None", top=CURRICULUM, step="aug.step()")
         .replace("loader =", "aug = Strength()\n    data.more = aug\n    loader ="), "self.value += 0.1"),
        (program("return self.transform(i), i", end="print(len(seen))")
         .replace("loader =", "seen = []\n    data.transform = lambda x: seen.append(x)  # !\n    loader ="), "# !"),
        # A method that the loader is given as a function.
        (program(options=", collate_fn=owner.join", step="owner.gain *= 2  # !", top="class Owner:\n    gain = 1\n"
                 "    def join(self, rows):\n        return torch.tensor(rows) * self.gain\n")
         .replace("    loader =", "    owner = Owner()\n    loader ="), "# !"),
        (program("return self.transform(i), i", "self.notes = []", end="data.set_up()\nprint(data.notes)",
                 more="def set_up(self):\n    self.transform = lambda x: self.notes.append(x)  # !"), "# !"),
        # Samples leave something behind.
        (program("self.seen.append(i)  # !\nreturn i, i", "self.seen = []"), "# !"),
        (program("self.count += 1  # !\nreturn i, i", "self.count = 0"), "# !"),
        (program("Images.count += 1  # !\nreturn i, i"), "# !"),
        (program("NOTES[i] = 1  # !\nreturn i, i", top="NOTES = {}\n"), "# !"),
        (program("global LAST\nLAST = i  # !\nreturn i, i", top="LAST = 0\n"), "# !"),
        (program("print(i)  # !\nreturn i, i"), "# !"),
        (program("logging.warning('bad')  # !\nreturn i, i"), "# !"),
        (program("open('log.txt', 'a').write('x')  # !\nreturn i, i"), "# !"),
        (program("self.buffer.copy_(self.x[i])  # !\nreturn self.buffer, i", f"{STORED}\nself.buffer = torch.zeros(16)"), "# !"),  # noqa: E501
        (program("x = None\nif i:\n    x = self.x[i]\nx.mul_(2)  # !\nreturn x, i", STORED), "# !"),
        (program("x = self.x[i]\nif i:\n    x = x * 2\nx.mul_(2)  # !\nreturn x, i", STORED), "# !"),
        (program("x = self.x[i]\nx.mul_(2)  # !\nreturn x, i", STORED), "# !"),
        (program("x = self.x[i]\nx += 1  # !\nreturn x, i", STORED), "# !"),
        (program("return self.tick(), i", "self.tick = itertools.count().__next__  # !"), "# !"),
        (program("sample = self.paths\ndel sample['y']\nreturn sample, i", step="out['y'] = x  # !", top=OUT), "# !"),
        (program("turn = self.q.rotate\nturn(i)  # !\nreturn self.q[0], i", "self.q = deque(paths)"), "# !"),
        (program("note(i)  # !\nreturn i, i", top="SEEN = []\nnote = SEEN.append\n"), "# !"),
        (program("return self.ids[self.paths[i]], i  # !", "self.ids = defaultdict(lambda: len(self.ids))", top="from collections import defaultdict\n"), "# !"),  # noqa: E501
        (program("return IDS[self.paths[i]], i  # !", top="import collections\nIDS = collections.defaultdict()\nIDS.default_factory = IDS.__len__\n"), "# !"),  # noqa: E501
        (program("return self.ids[self.paths[i]], i", "self.ids = Ids()", top="class Ids(dict):\n"
                 "    def __missing__(self, key):\n        self[key] = len(self)  # !\n        return self[key]\n"), "# !"),  # noqa: E501
        (program("self.cache.setdefault(i, i)  # !\nreturn i, i", "self.cache = {}"), "# !"),
        (program("return self.make(i, []), i", more="def make(self, i, seen, all=[]):\n    all.append(i)  # !\n    return i"), "# !"),  # noqa: E501
        (program("x = self.x[i]  # !\nreturn self.transform(x), i  # !", STORED, dataset="Images(paths, halve)",
                 top="def halve(x):\n    x /= 2\n    return x\n"), "# !"),
        (program("return prepare(self.x[i]), 0  # !", STORED, top="def norm_(x):\n    x /= 2\n"
                 "def prepare(x):\n    norm_(x)\n    return x\n"), "# !"),
        (program("return Tools.scale(self.x[i]), 0  # !", STORED, top="class Tools:\n    @staticmethod\n"
                 "    def scale(x):\n        for part in x:\n            part.mul_(2)\n        return x\n"), "# !"),
        (program("x = load(i)\nx *= 2  # !\nreturn x, i", top="from functools import lru_cache\n@lru_cache(maxsize=None)\n"  # noqa: E501
                 "def load(i):\n    return torch.load(i)\n"), "# !"),
        (program("x = self.fetch(i)\nx *= 2  # !\nreturn x, i", "self.fetch = cache(self.load)", "def load(self, i):\n    return torch.load(i)",  # noqa: E501
                 top="from functools import cache\n"), "# !"),
        (program("x = self.row(i)\nx *= 2  # !\nreturn x, i", STORED, "def row(self, i):\n    return self.x[i]"), "# !"),  # noqa: E501
        (program("x = np.squeeze(self.x[i].astype('f4', copy=False))\nx -= 1  # !\nreturn x, i", STORED), "# !"),
        (program("return nn.functional.relu(self.x[i], inplace=True), i  # !", STORED), "# !"),
        (program("image = self.images[i]\nimage.paste(0)  # !\nreturn image, i", "self.images = []"), "# !"),
        (program("return self.recs[i]  # !", "self.recs = []", options=", collate_fn=scaled", top="def scaled(rows):\n"
                 "    for row in rows:\n        row['x'] = row['x'] / 2\n    return rows[0]\n"), "# !"),
        # With batch_size=None, the list that is sorted is the dataset's own, or one of the module.
        (program("return self.groups[i]  # !", "self.groups = []", options=", collate_fn=sorts", top=SORTS).replace("batch_size=8", "batch_size=None"), "# !"),  # noqa: E501
        (program("return GROUPS[i]  # !", options=", collate_fn=sorts", top="SIZE = None\nGROUPS = []\n" + SORTS).replace("batch_size=8", "batch_size=SIZE"), "# !"),  # noqa: E501
        (program("return GROUPS[i]  # !", options=", collate_fn=sorts", top="MORE = {'batch_size': None}\nGROUPS = []\n" + SORTS).replace("batch_size=8", "**MORE"), "# !"),  # noqa: E501
        (program("return GROUPS[i]  # !", options=", collate_fn=sorts", top="MORE = dict(batch_size=None)\nGROUPS = []\n" + SORTS).replace("batch_size=8", "**MORE"), "# !"),  # noqa: E501
        (program("return GROUPS[i]  # !", options=", collate_fn=sorts", top="GROUPS = []\n" + SORTS).replace("batch_size=8", "batch_size=None"), "# !"),  # noqa: E501
        (program("return ROWS[i]  # !", options=", collate_fn=scaled", top="ROWS = []\ndef scaled(rows):\n"
                 "    for row in rows:\n        row['x'] = row['x'] / 2\n    return rows[0]\n"), "# !"),
        (program(dataset="TensorDataset(torch.ones(9, 16), torch.ones(9))  # !", options=", collate_fn=halved", top="def halved(rows):\n"  # noqa: E501
                 "    return torch.stack([x.div_(2) for x, _ in rows]), 0\nfrom torch.utils.data import TensorDataset\n"), "# !"),  # noqa: E501
        (program("return self.x[i], i  # !", STORED).replace("batch_size=8", "batch_size=None"), "# !"),
        (program("return self.x[i], i  # !", STORED, options=", collate_fn=lambda rows: rows[0]", step="x.mul_(2)"), "# !"),  # noqa: E501
        (program("return self.x[i], i  # !", STORED, options=", collate_fn=list", step="for row in x:\n    row.mul_(2)"), "# !"),  # noqa: E501
        (program("return self.x[i], i  # !", STORED, options=", collate_fn=operator.itemgetter(0)", step="x.mul_(2)", top="import operator\n"), "# !"),  # noqa: E501
        (program("return self.x[i], i  # !", STORED, options=", collate_fn=keep", step="for one in x:\n    one /= 2",
                 top="def keep(rows):\n    xs, ys = zip(*rows)\n    return list(xs), ys\n"), "# !"),
        (program("return self.x[i], i  # !", STORED, options=", collate_fn=Keep(1)", step="halve(x)",
                 top="class Keep:\n    def __init__(self, n):\n        pass\n    def __call__(self, rows):\n"
                     "        return [x.view(-1) for x, _ in rows], 0\ndef halve(x):\n    x[0] /= 2\n"), "# !"),
        (program(dataset="TensorDataset(torch.ones(9, 16), torch.ones(9))  # !", step="x.mul_(2)", top="from torch.utils.data import TensorDataset\n",  # noqa: E501
                 options=", collate_fn=lambda rows: rows[0]"), "# !"),
        (program("self.n = i  # !\nreturn i, i").replace("self", "this"), "# !"),
        (program("if i > 8:\n    sys.exit(3)  # !\nreturn i, i", top="import sys\n"), "# !"),
        (program("if i > 8:\n    leave()  # !\nreturn i, i", top="from sys import exit as leave\n"), "# !"),
        (program("if i > 8:\n    raise SystemExit  # !\nreturn i, i"), "# !"),
        (program("return self.one(i), i", more="def one(self, i):\n    return i if i < 8 else quit()  # !"), "# !"),
        (program("return i * rate(), i", top="STEP = [0]\ndef rate(step=STEP):\n    return step[0]\n", step="STEP[0] += 1  # !"), "# !"),  # noqa: E501
        # Seeds for a sample are seeds for training too.
        (program("torch.manual_seed(i)  # !\nreturn torch.rand(3), i"), "# !"),
        (program("random.seed(i)  # !\nreturn random.random(), i", step="noise = random.random()"), "# !"),
        (program(options=", collate_fn=drawn", step="np.random.rand()", top="def drawn(rows):\n    np.random.seed(0)  # !\n    return rows\n"), "# !"),  # noqa: E501
        # Gradients of samples, which no worker can send.
        (program("return self.x[i].clone().requires_grad_(), i  # !", STORED), "# !"),
        (program("return self.x[i], i", "self.x = torch.zeros(9, 16, requires_grad=True)  # !"), "# !"),
        (program("return self.paths[i], i", step="x.sum()").replace("data =", "paths.requires_grad = True  # !\n    data ="), "# !"),  # noqa: E501
        # Handles.
        (program(RECORDS, "self.file = open('x.bin', 'rb')  # !"), "# !"),
        (program(RECORDS, "self.file = zipfile.ZipFile('x.zip').open('x')  # !"), "# !"),
        (program(RECORDS, "self.file = zlib.decompressobj()  # !", top="import zlib\n"), "# !"),
        (program("return self.file['x'][i], i", "self.file = h5py.File('x.h5')  # !"), "# !"),
        (program("return self.rows[i], i", "self.rows = h5py.File('x.h5')['rows']  # !"), "# !"),
        (program("return self.rows[i], i", "self.file = h5py.File('x.h5')\nself.rows = self.file['rows']  # !"), "# !"),
        (program("return self.base.execute('x').fetchone(), i", "self.base = sqlite3.connect('x')  # !"), "# !"),
        (program("return self.arrays['x'][i], i", "self.arrays = np.load('x.npz')  # !"), "# !"),
        (program("return next(self.it), i", "self.it = iter(paths)"), "next(self.it)"),
        (program("return self.store.get(i), i", "self.store = stores.Client('x')  # !", top="import stores\n"), "# !"),
        (program("return FILE.read(4), i", top="FILE = open('x.bin', 'rb')  # !\n"), "# !"),
        (program("return self.files[i].read(), i", "self.files = [open(p) for p in paths]  # !"), "# !"),
        (program(LAZY, "self.file = None", end="print(data[0])  # !"), "# !"),
        (program(LAZY, "self.file = None", end="test = DataLoader(data, batch_size=8)  # !"), "# !"),
        # Results that functools keeps.
        (program("return self.load(i), i", more="@lru_cache\ndef load(self, i):\n    return torch.ones(i)",
                 end="print(data.load.cache_info())  # !", top="from functools import lru_cache\n"), "# !"),
        # The clock, the process, the environment.
        (program("return time.time(), i  # !"), "# !"),
        (program("return int(os.environ['SCALE']), i  # !"), "# !"),
        (program("return os.getpid(), i  # !"), "# !"),
        (program("return torch.utils.data.get_worker_info() is None, i  # !"), "# !"),
        # Exceptions.
        (program("raise KeyError(i)", end="try:\n    for x in loader:\n        pass\nexcept KeyError as error:  # !\n    print(error)"), "# !"),  # noqa: E501
    ],
)  # fmt: skip
def test_no_workers_are_given_where_a_worker_would_not_see_or_show_what_the_program_does(text: str, mark: str) -> None:
    refused("loader-workers", text, mark)


@pytest.mark.parametrize(
    ("sample", "gate"),
    [
        ("return nn.functional.interpolate(self.x[i][None, None], size=8)[0], i", Gate.ROUNDING),
        ("return torch.fft.rfft(self.x[i]).abs(), i", Gate.ROUNDING),
        ("return torch.linalg.solve(self.basis, self.x[i]), i", Gate.ROUNDING),
        ("return torch.mv(self.basis, self.x[i]), i", Gate.ROUNDING),
        ("return self.x[i] / torch.linalg.norm(self.x[i]), i", None),
        ("return self.x[i] - self.x[i].mean(), i", None),
    ],
)
def test_samples_that_threads_share_out_are_promised_up_to_rounding(sample: str, gate: Gate | None) -> None:
    answer = asked("loader-workers", program(sample, STORED))
    assert isinstance(answer, Edits)
    assert answer.gate is gate


def test_batches_are_not_pinned_where_training_writes_into_the_dataset_by_them() -> None:
    identity = ", collate_fn=lambda rows: rows[0]"
    refused("loader-pin", program("return self.x[i], i  # !", STORED, options=identity, step="x.mul_(2)"), "# !")
    assert isinstance(asked("loader-pin", program("return self.x[i], i", STORED, options=identity)), Edits)
    assert isinstance(asked("loader-pin", program("return self.x[i], i", STORED, step="x.mul_(2)")), Edits)


@pytest.mark.parametrize(
    ("first", "edited"),
    [
        ("nn.ReLU(inplace=True)", False),
        ("nn.Dropout(0.1, True)", False),
        ("nn.Sequential(nn.LeakyReLU(0.2, True), nn.Linear(16, 16))", False),
        ("nn.Sequential(nn.Linear(16, 16), nn.ReLU(True))", True),
        ("nn.Dropout(0.1)", True),
    ],
)
def test_a_first_layer_that_writes_to_its_input_writes_to_samples_that_are_no_copies(first: str, edited: bool) -> None:
    text = program("return self.x[i], i  # !", STORED, options=", collate_fn=lambda rows: rows[0]", step="act(x)")
    text = text.replace("    loader =", f"    act = {first}\n    loader =")
    for fixer in ("loader-workers", "loader-pin"):
        if edited:
            assert isinstance(asked(fixer, text), Edits)
        else:
            refused(fixer, text, "# !")


def test_state_is_found_across_the_files_of_a_program() -> None:
    data = TOP + DATASET.format(init="self.strength = 0", sample=NOISY, more="").rstrip() + "\n"
    main = MAIN.format(dataset="Images(paths)", options="", epoch="pass", step="data.strength += 1  # !", end="pass")
    refused("loader-workers", TOP + "from images import Images\n" + main, "# !", images=data)


def test_a_file_of_settings_that_is_executed_is_read_before_there_are_samples() -> None:
    settings = "import sys\nfor name in sys.argv[1:]:\n    exec(open(name).read())\n"
    text = program("return i, i", top="exec(open('settings.py').read())\n")
    assert isinstance(asked("loader-workers", text, settings=settings), Edits)


def test_a_base_class_is_read_too() -> None:
    text = program("return i, i").replace("class Images(Dataset):", "class Images(Kept):")
    base = (
        "class Kept(Dataset):\n    def __getitems__(self, rows):\n        self.rows += rows  # !\n        return rows\n"
    )
    refused("loader-workers", text.replace("\nclass Images", f"\n{base}\nclass Images", 1), "# !")


def test_a_function_without_a_name_is_not_sent_to_a_process_that_is_spawned() -> None:
    text = program(dataset="Images(paths, lambda x: x)", options=", multiprocessing_context='spawn'")
    refused("loader-workers", text, "lambda x")
    assert isinstance(asked("loader-workers", text.replace("'spawn'", "'fork'")), Edits)


def test_names_of_a_samples_own_are_not_what_others_of_the_same_name_are() -> None:
    printing = "def train(model):\n    print(model)\n"
    text = program("return self.items[i], i", "self.items = torch.zeros(9, train)", top=printing)
    text = text.replace("paths, transform=None", "paths, train=True")
    assert isinstance(asked("loader-workers", text), Edits)
    text = program("input = self.paths[i]\nreturn self.transform(input), i")
    assert isinstance(asked("loader-workers", text), Edits)


def test_a_function_that_is_passed_for_a_parameter_is_followed() -> None:
    printing = "def show(x):\n    print(x)  # !\n"
    text = program("return self.transform(i), i", dataset="Images(paths, show)", top=printing)
    refused("loader-workers", text, "# !")


def test_what_a_script_sets_before_it_calls_its_functions_is_seen_by_kept_workers() -> None:
    text = program("return self.transform(i), i", dataset="Images(paths, lambda x: x * args.scale)")
    text = text.replace("def main():", "def main(args):")
    text = text.replace("    main()\n", "    args = parsed()\n    main(args)\n")
    assert isinstance(asked("persistent-workers", text), Edits)
    twice = text.replace("    args = ", "    main(1)\n    args = ")
    refused("persistent-workers", twice, "args = parsed()")


def test_a_static_method_that_makes_a_configuration_is_called_where_it_is_named() -> None:
    made = "@staticmethod\ndef usual():\n    c = Config()\n    c.scale = 2  # !\n    return c"
    text = program("return i * self.config.scale, i", "self.config = Images.usual()", more=made)
    assert isinstance(asked("loader-workers", text), Edits)
    refused("loader-workers", text.replace("            pass\n", "            Images.usual()\n"), "# !")


def test_the_program_of_the_demo_is_given_workers() -> None:
    text = (Path(diagnose.cli.__file__).parent / "programs" / "demo_program" / "train.py").read_text()
    assert isinstance(asked("loader-workers", text), Edits)
