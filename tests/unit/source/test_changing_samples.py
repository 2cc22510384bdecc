"""What changes a dataset, and which of several seeds is named: the first in the order of the text, in every process."""

from __future__ import annotations

import re

import libcst as cst
import pytest

from diagnose.source.samples.changing_samples import changes_by_name
from diagnose.source.samples.dataset_rng import sample_draw
from diagnose.source.tree.syntax import parse

PARTS = ("Resize", "Crop", "Flip", "Blur", "Tilt", "Noise", "Shade", "Erase")


@pytest.mark.parametrize("order", [PARTS, PARTS[::-1], PARTS[3:] + PARTS[:3]])
def test_the_first_of_several_seeds_is_named(order: tuple[str, ...]) -> None:
    text = "".join(f"def {part}(worker):\n    random.seed('{part}')\n" for part in PARTS)
    text += "class Images:\n    def __getitem__(self, i):\n        return random.random()\n"
    source = parse(f"import random\n{text}loader = DataLoader(Images(), worker_init_fn=chain({', '.join(order)}))\n")
    assert source is not None
    (loader,) = source.calls_named("DataLoader")
    init = next(each.value for each in loader.args if each.keyword is not None)
    assert isinstance(init, cst.Call)
    draw = sample_draw({"train.py": source.text}, "train.py", (loader.args[0].value,), (), init)
    assert draw is not None
    assert draw.code == f"random.seed('{order[0]}')"


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("for data in loader:\n    data.x = data.x.cuda()\n", False),
        ("for data in loader:\n    data = data.to(device)\n    data.x = data.x.cuda()\n", False),
        ("bar = tqdm(enumerate(train_loader))\nfor i, data in bar:\n    data.x = data.x.cuda()\n", False),
        ("for data in loaders[phase]:\n    data.x = data.x.cuda()\n", False),
        ("for data, other in zip(loader, self.other_loader):\n    data.x = other.x\n", False),
        ("batches = DataLoader(images)\nfor data in batches:\n    data.x = 1\n", False),
        ("for data in (train_data, test_data):\n    data.epoch = epoch\n", True),
        ("for data, n in zip((train_data, test_data), (1, 2)):\n    data.epoch = epoch\n", True),
        ("for data in chain([train_data], parts):\n    data.epoch = epoch\n", True),
        ("parts = [train_data]\nfor data in parts:\n    data.epoch = epoch\n", True),
        ("for data in loader:\n    pass\nfor data in parts:\n    data.epoch = epoch\n", True),
        ("for data in loaders:\n    data.dataset.epoch = epoch\n", True),
        ("data = Images()\nfor epoch in range(9):\n    data.x = epoch\n", True),
        ("data = Images()\nfor data in loader:\n    data.x = 1\n", True),
        ("def restart(data):\n    data.x = 1\n\n\nfor data in loader:\n    restart(data)\n", True),
        ("self.data.x = 1\n", False),
    ],
)
def test_what_only_loops_over_loaders_bind_is_a_batch_and_no_dataset(line: str, changes: bool) -> None:
    change = re.compile(r"\b\w*data(?:\.\w+)*\.\w+ = ")
    assert changes_by_name({"train.py": line}, change, ("self.", "from ")) is changes
