"""Objects under other names: samples that change what a program keeps, and programs that change what samples read."""

from __future__ import annotations

import re

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

TOP = "POOL = torch.zeros(3)\nSCALE = 3\nSIZE = (3, 4)\ndef shift(x, by):\n    x.sub_(by)\n    return x\n"
TOP += "PAIR = (POOL, 2)\ndef pick(x, rows):\n    return x[:rows], rows\n"


@pytest.mark.parametrize(
    "sample",
    [
        "x = POOL\nx += 1  # !\nreturn x, i",
        "x = POOL\nx.add_(1)  # !\nreturn x, i",
        "rows = [POOL]\nrows[0] += 1  # !\nreturn rows[0], i",
        "rows = {'a': self.pool}\nrows['a'] += 1  # !\nreturn rows['a'], i",
        "rows = [self.pool]\nrows[0].add_(1)  # !\nreturn rows[0], i",
        "x = torch.rand(3)\nshift(POOL, x)  # !\nreturn x, i",
        "x, y = POOL, i\nx += 1  # !\nreturn x, y",
        "(x, y), z = (POOL, i), 0\nx += 1  # !\nreturn x, y",
        "rows = torch.zeros(3, out=POOL)  # !\nreturn rows, i",
        "x, _ = pick(POOL, 2)\nx += 1  # !\nreturn x, i",
        "x, _ = pick(rows=2, x=self.pool)\nx += 1  # !\nreturn x, i",
        "_, x = pick(torch.rand(3), POOL)\nx += 1  # !\nreturn x, i",
        "x, n = PAIR\nx += 1  # !\nreturn x, i",
        "rows = torch.add(POOL, 1, out=self.pool)  # !\nreturn rows, i",
    ],
)
def test_an_object_that_is_kept_is_changed(sample: str) -> None:
    refused("loader-workers", program(sample, "self.pool = torch.zeros(3)", top=TOP), "# !")


@pytest.mark.parametrize(
    "sample",
    [
        "x = POOL + 0\nx += 1\nreturn x, i",
        "x, y = POOL + 0, POOL\nx += 1\nreturn x, i",
        "return shift(torch.rand(3), POOL), i",
        "x, _ = pick(torch.rand(3), self.pool)\nx += 1\nreturn x, i",
        "x = SCALE\nx += 1\nreturn x, i",
        "h, w = SIZE\nh += 1\nreturn h * w, i",
        "rows = [0, 0]\nrows[0] += 1\nreturn rows[0], i",
        "rows = [POOL, POOL]\nrows[0] = 1\nreturn rows[0], i",
        "rows = [POOL]\nrows.append(POOL)\nreturn torch.stack(rows), i",
        "rows = torch.zeros(3)\nrows = torch.add(POOL, 1, out=rows)\nrows += 1\nreturn rows, i",
    ],
)
def test_an_object_of_the_samples_own_is_changed(sample: str) -> None:
    answer = asked("loader-workers", program(sample, "self.pool = torch.zeros(3)", top=TOP))
    assert isinstance(answer, Edits), answer


CODE = {
    "Halve": "class Halve:\n    def __call__(self, x):\n        x /= 2\n        return x\nHALVE = Halve()\n",
    "HalveEntry": "class HalveEntry:\n    def __call__(self, sample):\n        sample['x'] /= 2\n"
    "        return sample\n",
    "ReplaceEntry": "class ReplaceEntry:\n    def __call__(self, sample):\n        sample['x'] = sample['x'] / 2\n"
    "        return sample\n",
    "collate": "def collate(samples):\n    for x, y in samples:\n        x += 1\n"
    "    return torch.stack([x for x, _ in samples]), 0\n",
    "entries": "def entries(samples):\n    for each in samples:\n        each['x'] += 1\n"
    "    return torch.stack([each['x'] for each in samples]), 0\n",
    "Wrapped": "class Wrapped:\n    def __init__(self, x, y):\n        self.part, self.y = x, y\n",
    "parts": "def parts(samples):\n    for each in samples:\n        each.part += 1\n"
    "    return torch.stack([each.part for each in samples]), 0\n",
    "shift": "def shift(x):\n    x += 1\n    return x\n",
    "pops": "def pops(samples):\n    y = [each.pop('y') for each in samples]\n    for each in samples:\n"
    "        each['x'] = each['x'] + 1\n    return torch.stack([each['x'] for each in samples]), torch.tensor(y)\n",
    "Steps": "class Steps:\n    def __init__(self, steps):\n        self.steps = steps\n    def __call__(self, x, y):\n"
    "        for step in self.steps:\n            x, y = step(x, y)\n        return x, y\n",
    "Second": "class Second:\n    def __call__(self, x, y):\n        part = y[0]\n        part += 1\n"
    "        return x, y\n",
    "Keeps": "class Keeps:\n    def __init__(self, change):\n        self.change = change\n    def __call__(self, x):\n"
    "        return self.change(x)\n",
    "stack": "def stack(samples):\n    return torch.stack([x for x, _ in samples]), 0\n",
}


def given(sample: str, transform: str, collate: str | None) -> str:
    """A program with a transform and a collate function of these names."""
    used = f"{sample} {transform} {collate}".replace("HALVE", "Halve")
    top = "".join(code for name, code in CODE.items() if re.search(rf"\b{name}\b", used))
    options = f", collate_fn={collate}" if collate else ""
    return program(sample, ROWS, dataset=f"Images(paths, {transform})", options=options, top=top)


ROWS = "self.rows = [(torch.zeros(3), 0)]\nself.x = torch.zeros(9, 3)"


@pytest.mark.parametrize(
    ("sample", "transform", "collate"),
    [
        ("row = self.rows[i]\nreturn row[0], row[1]  # !", "None", "collate"),
        ("x, y = self.rows[i]\nreturn x, y  # !", "None", "collate"),
        ("row = self.rows[i]\npart = row[0]\nreturn (part.view(-1), 1)  # !", "None", "collate"),
        ("sample = {'x': self.x[i], 'y': i}  # !\nreturn sample", "None", "entries"),
        ("sample = {}\nsample['x'] = self.x[i]  # !\nreturn sample", "None", "entries"),
        ("sample = dict(x=self.x[i], y=i)  # !\nreturn sample", "None", "entries"),
        ("return Wrapped(self.x[i], i)  # !", "None", "parts"),
        ("x, y = self.paths[i], self.x[i]\nx, y = self.transform(x, y)  # !\nreturn x, y", "Steps([Second()])", None),
        ("x, y = i, dict(self.rows[i])  # !\nx, y = self.transform(x, y)\nreturn x, y", "Steps([Second()])", None),
        ("x, y = map(shift, (self.x[i], self.x[0]))  # !\nreturn x, y", "None", None),
        ("return shift(getattr(self, 'x')[i]), i  # !", "None", None),
        ("return self.rows[i]  # !", "None", "pops"),
        ("row = self.rows[i]\nreturn self.transform(row[0]), row[1]  # !", "Halve()", None),
        ("x = self.x[i]\nfor change in self.transform:\n    x = change(x)  # !\nreturn x, i", "[Halve()]", None),
        ("return self.transform['train'](self.x[i]), i  # !", "{'train': Halve()}", None),
        ("return HALVE(self.x[i]), i  # !", "None", None),
        ("sample = {'x': self.x[i]}  # !\nreturn self.transform(sample)['x'], i", "HalveEntry()", None),
    ],
)
def test_an_object_that_is_kept_is_handed_on_to_code_that_changes_it(
    sample: str, transform: str, collate: str | None
) -> None:
    refused("loader-workers", given(sample, transform, collate), "# !")


@pytest.mark.parametrize(
    ("sample", "transform", "collate"),
    [
        ("row = self.rows[i]\nx = torch.load(row[0])\nreturn self.transform(x), row[1]", "Halve()", None),
        ("x = torch.load(self.paths[i])\nreturn self.transform(x), self.x[i]", "Halve()", "stack"),
        ("sample = {'x': self.x[i], 'y': i}\nreturn sample", "None", "pops"),
        ("return {'x': self.x[i], 'y': self.rows[i][1]}", "None", "pops"),
        ("x, y = self.x[i], torch.rand(3)\nx, y = self.transform(x, y)\nreturn x, y", "Steps([Second()])", None),
        ("x, y = map(shift, (self.x[i] * 2, self.x[0] * 2))\nreturn x, y", "None", None),
        ("x = self.x[i]\nx = Image.fromarray(x)\nreturn self.transform(x), i", "Halve()", None),
        ("x, y = self.rows[i]\nx = x * 2\nreturn x, y * 2", "None", "collate"),
        ("sample = {'x': self.x[i]}\nreturn self.transform(sample)['x'], i", "ReplaceEntry()", None),
        ("sample = {'x': self.x[i].clone()}\nreturn self.transform(sample)['x'], self.x[i]", "HalveEntry()", None),
    ],
)
def test_what_is_changed_is_another_object(sample: str, transform: str, collate: str | None) -> None:
    answer = asked("loader-workers", given(sample, transform, collate))
    assert isinstance(answer, Edits), answer


def with_transform(made: str, sample: str = "return self.transform(self.x[i]), i  # !") -> str:
    """A program whose dataset keeps tensors, and a transform that is made so."""
    top = "from torchvision import transforms as T\n" + CODE["Keeps"]
    return program(sample, ROWS, dataset=f"Images(paths, {made})", top=top)


@pytest.mark.parametrize(
    "made",
    [
        "T.Normalize(0, 1, inplace=True)",
        "T.Normalize(0, 1, True)",
        "nn.ReLU(inplace=True)",
        "T.Compose([T.CenterCrop(8), T.Normalize(0, 1, inplace=True), T.ToTensor()])",
        "nn.Sequential(nn.Flatten(), nn.Dropout(0), nn.ReLU(True))",
        "Keeps(T.Normalize(0, 1, inplace=True))",
    ],
)
def test_a_transform_of_a_library_changes_an_object_that_is_kept(made: str) -> None:
    refused("loader-workers", with_transform(made), "# !")
    part = "x = self.x[i].unbind(0)[0]\nreturn self.transform(x), i  # !"
    refused("loader-workers", with_transform(made, part), "# !")


@pytest.mark.parametrize(
    "made",
    [
        "T.Normalize(0, 1)",
        "T.Compose([T.ToTensor(), T.Normalize(0, 1, inplace=True)])",
        "nn.Sequential(nn.Softmax(0), nn.ReLU(True))",
        "Keeps(T.Compose([T.ToTensor(), T.Normalize(0, 1, inplace=True)]))",
    ],
)
def test_a_transform_of_a_library_changes_what_it_has_made(made: str) -> None:
    answer = asked("loader-workers", with_transform(made))
    assert isinstance(answer, Edits), answer


def test_a_transform_of_a_library_changes_what_the_sample_has_made() -> None:
    sample = "return self.transform(self.x[i] * 2), i"
    answer = asked("loader-workers", with_transform("T.Normalize(0, 1, inplace=True)", sample))
    assert isinstance(answer, Edits), answer


WRAP = """class Wrap(Dataset):
    def __init__(self, base, change):
        self.base, self.change = base, change
    def __len__(self):
        return len(self.base)
    def __getitem__(self, i):
        x, y = self.base[i]  # wraps
        return self.change(x), y  # !
"""
WRAPPED = "Wrap(random_split(Images(paths), [8, 1])[0], Halve())"


@pytest.mark.parametrize("sample", ["return self.rows[i]", "row = self.rows[i]\nreturn row[0], row[1]"])
def test_a_dataset_around_another_changes_what_that_one_keeps(sample: str) -> None:
    refused("loader-workers", program(sample, ROWS, dataset=WRAPPED, top=CODE["Halve"] + WRAP), "# !")
    changes = WRAP.replace("self.base[i]  # wraps", "self.base[i]\n        x += 1  # also")
    refused("loader-workers", program(sample, ROWS, dataset=WRAPPED, top=CODE["Halve"] + changes), "# also")


@pytest.mark.parametrize("dataset", ["Images(paths)", "CIFAR10('data')", "random_split(Images(paths), [8, 1])[0]"])
@pytest.mark.parametrize("made", ["torch.load(self.paths[i])", "self.x[i]\nx = x - x.mean()"])
def test_a_dataset_around_another_changes_what_that_one_has_made(dataset: str, made: str) -> None:
    top = "from torchvision.datasets import CIFAR10\n" + CODE["Halve"] + WRAP
    sample = f"x = {made}\nreturn x, self.rows[i][1]"
    answer = asked("loader-workers", program(sample, ROWS, dataset=f"Wrap({dataset}, Halve())", top=top))
    assert isinstance(answer, Edits), answer


def test_one_of_several_results_is_an_object_that_is_kept() -> None:
    get = "def get(self, i):\n    return self.x[i], i"
    refused("loader-workers", program("x, y = self.get(i)\nx += 1  # !\nreturn x, y", ROWS, get), "# !")


STORED = "self.x = torch.zeros(9, 16)"
KEEPER = """
class Keeper:
    def __init__(self, rows):
        self.kept = rows
    def __call__(self, x):
        self.kept.extend(x)  # !
"""
NORMS = "NORM = {'mean': torch.zeros(16)}\nCOUNT = 3\n"


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (program("return self.x[i], i", "self.x = []", step="keep(x)", top=KEEPER)
         .replace("    loader =", "    keep = Keeper(data.x)\n    loader ="), "# !"),
        (program("return self.x[i], i", "self.x = []", step="keep(x)", top=KEEPER.replace("= rows", "= rows.x"))
         .replace("    loader =", "    keep = Keeper(data)\n    loader ="), "# !"),
        (program("return self.x[i] - NORM['mean'], i", STORED, step="m = NORM['mean']\nm += x.mean(0)  # !", top=NORMS),
         "# !"),
    ],
    ids=["an attribute of another object", "taken from the dataset", "an item of a global"],
)  # fmt: skip
def test_what_samples_read_may_be_changed_by_another_name(text: str, mark: str) -> None:
    refused("loader-workers", text, mark)


def test_a_number_that_is_taken_from_a_global_is_another_object() -> None:
    text = program("return self.x[i] * COUNT, i", STORED, step="n = COUNT\nn += 1", top=NORMS)
    assert isinstance(asked("loader-workers", text), Edits)
