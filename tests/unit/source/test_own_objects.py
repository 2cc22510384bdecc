"""Objects of the program's own that have the names of what samples read, and are others."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

OPTIONS = """
class Trainer:
    def __init__(self, args):
        self.args = args
        self.init()
    def init(self):
        self.args.size = 8  # !

class Long(Trainer):
    def __init__(self, args):
        super(Long, self).__init__(args)

ARGS = argparse.Namespace(size=1)
"""


@pytest.mark.parametrize("end", ["pass", "nn.init.zeros_(model.weight)"])
def test_a_base_is_built_where_a_class_is_that_is_derived_from_it_or_has_another_name(end: str) -> None:
    text = program("return torch.load(self.paths[i]) * ARGS.size, i", top=OPTIONS, end=end)
    text = text.replace("import os", "import argparse, os", 1)
    built = "kind = Long\n{0}kind(ARGS)\n"
    before = text.replace("    paths = sorted", f"    {built.format('    ')}    paths = sorted", 1)
    assert isinstance(asked("loader-workers", before), Edits)
    step = "            opt.step()\n"
    refused("loader-workers", text.replace(step, f"{step}            {built.format('            ')}"), "# !")


OWN = """
def labelled(outputs):
    paths = []
    for each in outputs:
        paths.append(each[::-1])
    paths = np.array(paths, dtype=float)
    paths[:, 0] = np.clip(paths[:, 0] / 2 + 1, 0, 1)
    return paths
"""


def test_a_list_that_a_function_makes_is_not_the_datasets_of_the_same_name() -> None:
    assert isinstance(asked("loader-workers", program(top=OWN, step="labelled(x)")), Edits)
    shared = OWN.replace("paths = []", "paths = Images.paths  # !")
    refused("loader-workers", program(top=shared, init="Images.paths = paths", step="labelled(x)"), "paths.append")


SETUP = """
class Task(lightning.LightningModule):
    def prepare_data(self):
        options = {"paths": ["a"]}
        options["paths"] = sorted(os.listdir("images"))  # !
        self.data = Images(options)
    def train_dataloader(self):
        return DataLoader(self.data, batch_size=8, shuffle=True)

lightning.Trainer().fit(Task())
"""


def test_options_may_change_until_the_dataset_is_made_of_them() -> None:
    text = program("return torch.load(self.paths['paths'][i]), i")
    text = text[: text.index("def main")].replace("import os", "import lightning, os", 1) + SETUP
    assert isinstance(asked("loader-workers", text), Edits)
    change, made = SETUP.splitlines(keepends=True)[4:6]
    refused("loader-workers", text.replace(change + made, made + change), "# !")


STEPPED = """
class Descent(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - p.grad  # !
"""


def test_the_parameters_of_an_optimizers_group_are_no_samples() -> None:
    sample = "return self.data[i], i"
    assert isinstance(asked("loader-workers", program(sample, "self.data = paths", top=STEPPED)), Edits)
    others = STEPPED.replace('group["params"]', 'group["images"]')
    refused("loader-workers", program(sample, "self.data = paths", top=others), "# !")
