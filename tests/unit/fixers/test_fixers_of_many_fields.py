"""Fixers on lines as different fields write them: segmentation, diffusion, detection, reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diagnose.fixer import Advice, Answer, Edits, Facts, Site, example_request
from diagnose.model import Scalar
from diagnose.plugins import load

FIXERS = load().fixers
H200 = Facts(device_name="NVIDIA H200", device_capability=(9, 0), cpu_count=16)
TOP = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n\n"
STEP = "    loss = model(images).mean()\n    loss.backward()\n    optimizer.step()\n"


def answer(fixer: str, rule: str, text: str, lines: Sequence[int] = ()) -> Answer:
    """What a fixer says to a program whose loader a run recorded."""
    sites = [
        Site("DataLoader", "train.py", number, arguments={"pin_memory": "pin_memory=True" in line})
        for number, line in enumerate(text.splitlines(), 1)
        if "DataLoader(" in line
    ]
    return FIXERS[fixer].rewrite(example_request(rule, text, sites=sites, facts=H200, lines=lines))


def edited(found: Answer) -> str:
    """The text after an edit."""
    assert isinstance(found, Edits), found
    return found.files["train.py"]


def naming(text: str, code: str) -> list[int]:
    """The lines that hold some code."""
    return [number for number, line in enumerate(text.splitlines(), 1) if code in line]


def test_a_batch_taken_apart_by_its_keys_is_one_of_the_loaders() -> None:
    text = (
        f"{TOP}loader = DataLoader(data, pin_memory=True)\nfor batch in loader:\n"
        "    images, masks = batch['image'], batch['mask']\n"
        f"    images = images.to(device=device, dtype=torch.float32)\n    masks = masks.to(device=device)\n{STEP}"
    )
    after = edited(answer("nonblocking-copies", "pageable-copies", text))
    assert "images.to(device=device, dtype=torch.float32, non_blocking=True)" in after
    assert "masks.to(device=device, non_blocking=True)" in after


TRAINER = f"""{TOP}
def cycle(loader):
    while True:
        yield from loader

class Trainer:
    def __init__(self, model, data, device):
        self.model = model
        self.device = device
        self.model.to(self.device)
        self.batches = cycle(DataLoader(data, batch_size=8, shuffle=True))

    def train(self):
        for step in range(100):
            images = next(self.batches).to(self.device)
            self.model(images).mean().backward()
            self.optimizer.step()
"""


METHOD = f"""{TOP}
class Trainer:
    def loss_of(self, batch):
        images, labels = batch{{key}}
        images = images.to(self.device)
        labels = labels.to(self.device)
        return criterion(self.model(images), labels)

    def fit(self, data):
        for batch in DataLoader(data, batch_size=8):
            self.loss_of(batch).backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize("key", ["", '["pair"]'])
def test_a_batch_that_a_method_is_given_and_takes_apart_is_one_of_the_loaders(key: str) -> None:
    text = METHOD.replace("{key}", key)
    after = edited(answer("nonblocking-copies", "pageable-copies", text, naming(text, ".to(")))
    assert "images = images.to(self.device, non_blocking=True)" in after
    assert "labels = labels.to(self.device, non_blocking=True)" in after
    assert "DataLoader(data, batch_size=8, pin_memory=True)" in after


def test_what_a_method_takes_of_its_own_object_is_no_batch() -> None:
    text = METHOD.replace("batch{key}", "self.pair")
    assert isinstance(answer("nonblocking-copies", "pageable-copies", text, naming(text, ".to(")), Advice)


def test_the_next_of_an_endless_loader_is_copied_without_waiting_and_the_model_is_no_batch() -> None:
    after = edited(answer("nonblocking-copies", "pageable-copies", TRAINER, naming(TRAINER, ".to(")))
    assert "next(self.batches).to(self.device, non_blocking=True)" in after
    assert "shuffle=True, pin_memory=True)" in after
    assert "self.model.to(self.device)\n" in after


NESTED = f"""{TOP}
class NestedTensor:
    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def to(self, device):
        return NestedTensor(self.tensors.to(device), self.mask.to(device))

loader = DataLoader(data, collate_fn=nested, pin_memory=True)
for samples, targets in loader:
    samples = samples.to(device)
    targets = [{{key: value.to(device) for key, value in target.items()}} for target in targets]
    loss = criterion(model(samples), targets)
    loss.backward()
    optimizer.step()
"""
ABLE = NESTED.replace(
    "def to(self, device)", "def pin_memory(self):\n        return self\n\n    def to(self, device, **how)"
)


def test_a_batch_with_a_to_of_its_own_is_not_told_what_that_does_not_take() -> None:
    after = edited(answer("nonblocking-copies", "pageable-copies", NESTED))
    assert "samples = samples.to(device)\n" in after
    assert "value.to(device, non_blocking=True) for" in after
    assert "self.tensors.to(device), self.mask.to(device)" in after


def test_what_a_list_holds_may_be_such_a_batch() -> None:
    listed = NESTED.replace("[{key: value.to(device) for key, value in target.items()} for", "[target.to(device) for")
    assert listed != NESTED
    assert isinstance(answer("nonblocking-copies", "pageable-copies", listed), Advice)
    able = ABLE.replace("[{key: value.to(device) for key, value in target.items()} for", "[target.to(device) for")
    assert "target.to(device, non_blocking=True) for" in edited(answer("nonblocking-copies", "pageable-copies", able))


def test_a_batch_that_can_be_pinned_and_told_is_told() -> None:
    assert "samples = samples.to(device, non_blocking=True)" in edited(
        answer("nonblocking-copies", "pageable-copies", ABLE)
    )


def test_what_such_a_batch_needs_is_said() -> None:
    alone = NESTED.replace("    targets = [", "    # targets = [")
    advice = answer("nonblocking-copies", "pageable-copies", alone)
    assert isinstance(advice, Advice)
    assert "`NestedTensor`" in advice.text and "pin_memory" in advice.text


def test_a_list_that_grows_by_one_value_is_read_at_once() -> None:
    text = (
        "import numpy as np\nimport torch\n\nfor update in range(3):\n"
        "    fractions = []\n    for start in range(0, 8, 2):\n"
        "        ratio = model(states[start:start + 2])\n        with torch.no_grad():\n"
        "            fractions += [((ratio - 1.0).abs() > 0.2).float().mean().item()]\n"
        "        optimizer.zero_grad()\n        ratio.mean().backward()\n        optimizer.step()\n"
        "    print(np.mean(fractions))\n"
    )
    after = edited(answer("defer-item", "host-sync", text, naming(text, ".item()")))
    assert "fractions += [((ratio - 1.0).abs() > 0.2).float().mean().detach()]" in after
    assert "np.mean([value.item() for value in fractions])" in after


@pytest.mark.parametrize("update", ["fractions += [ratio.mean().item(), 0.5]", "fractions *= 2", "fractions += others"])
def test_a_list_that_grows_in_other_ways_is_left_alone(update: str) -> None:
    text = (
        "import torch\n\nfractions = []\nfor start in range(9):\n"
        "    ratio = model(start)\n    ratio.mean().backward()\n"
        f"    optimizer.step()\n    {update}\n    fractions += [ratio.mean().item()]\nprint(fractions)\n"
    )
    assert isinstance(answer("defer-item", "host-sync", text, naming(text, ".item()")), Advice)


BUILDER = """import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument('-j', '--workers', type=int, default=0)


def create_loader(dataset, batch_size, num_workers=1, persistent_workers=True):
    loader_class = torch.utils.data.DataLoader
    loader_args = dict(
        batch_size=batch_size,
        shuffle=True,
        num_workers=num_workers,
        pin_memory=True,
        persistent_workers=persistent_workers and num_workers > 0)
    try:
        loader = loader_class(dataset, **loader_args)
    except TypeError:
        loader_args.pop('persistent_workers')
        loader = loader_class(dataset, **loader_args)
    return loader


args = parser.parse_args()
loader = create_loader(data, batch_size=8, num_workers=args.workers)
for images in loader:
    model(images).mean().backward()
"""


def test_workers_are_set_where_the_program_sets_them_through_a_function_that_builds_loaders() -> None:
    line = naming(BUILDER, "loader_class(dataset")[0]
    options: dict[str, Scalar] = {"name": "DataLoader", "num_workers": 0, "pin_memory": True, "shuffle": True}
    request = example_request("input-bound", BUILDER, sites=[Site("DataLoader", "train.py", line, None, options)])
    found = FIXERS["loader-workers"].rewrite(replace(request, setting={"num_workers": 4}))
    assert edited(found) == BUILDER.replace("default=0", "default=4")


def test_a_module_without_forward_is_compiled_by_the_methods_that_steps_call() -> None:
    text = (
        f"{TOP}class Agent(nn.Module):\n    def value(self, x):\n        return self.critic(x)\n\n"
        "    def act(self, x):\n        return self.actor(x)\n\n"
        "agent = Agent()\nfor start in range(9):\n    loss = agent.act(batch).mean()\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    after = edited(answer("compile-model", "launch-bound", text))
    assert "agent.act = torch.compile(agent.act)\n" in after
    assert "agent.value = " not in after


def test_a_logger_that_hands_out_the_batches_is_told_to_keep_tensors() -> None:
    text = (
        "import torch\n\nlogger = MetricLogger()\nfor images, labels in logger.log_every(loader, 10):\n"
        "    loss = model(images).mean()\n    loss.backward()\n    optimizer.step()\n"
        "    logger.update(loss=loss.item())\n"
    )
    advice = answer("defer-item", "host-sync", text, naming(text, ".item()"))
    assert isinstance(advice, Advice)
    assert "`logger` hands out the batches" in advice.text


DISTILLED = f"""{TOP}teacher = nn.Conv2d(3, 8, 3).to(device)
student = nn.Conv2d(3, 8, 3).to(device)
for epoch in range(3):
    running_loss, correct, total = 0.0, 0, 0
    for i, images in enumerate(DataLoader(data)):
        with torch.no_grad():
            aim = teacher(images)
        found = student(images)
        loss = (found - aim).square().mean()
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(images)
        correct += found.eq(aim).sum().item()
        total += len(images)
    print(running_loss / total, correct / total)
"""


def test_of_teacher_and_student_the_one_that_learns_is_the_model() -> None:
    after = edited(answer("compile-model", "launch-bound", DISTILLED))
    assert "student.compile()\n" in after
    assert "teacher.compile()" not in after


def test_sums_that_begin_in_one_row_are_kept_on_the_device() -> None:
    after = edited(answer("defer-item", "host-sync", DISTILLED, naming(DISTILLED, ".item()")))
    assert "running_loss += loss.detach().double() * len(images)" in after
    assert "correct += found.eq(aim).sum().detach()" in after
    assert "print(float(running_loss) / total, int(correct) / total)" in after


@pytest.mark.parametrize(
    ("start", "known"),
    [("0.0, other", True), ("0.0, model(images).item()", True), ("start", False), ("*starts", False)],
)
def test_a_sum_is_kept_where_its_own_start_in_a_row_is_known(start: str, known: bool) -> None:
    text = DISTILLED.replace(
        "running_loss, correct, total = 0.0, 0, 0", f"correct, total = 0, 0\n    running_loss, other = {start}"
    )
    text = text.replace("        correct += found.eq(aim).sum().item()\n", "")
    found = answer("defer-item", "host-sync", text, naming(text, ".item() * "))
    if known:
        assert "running_loss += loss.detach().double() * len(images)" in edited(found)
    else:
        assert isinstance(found, Advice)


OWN_LOADER = """from torch.utils.data import DataLoader


class OwnLoader(DataLoader):
    def __init__(self, dataset, batch_size, num_workers):
        self.init_kwargs = {'dataset': dataset, 'batch_size': batch_size, 'num_workers': num_workers}
        super().__init__(**self.init_kwargs)
"""


def test_a_loader_of_the_programs_own_kind_is_told_in_its_constructor() -> None:
    line = naming(OWN_LOADER, "super().__init__(")[0]
    options: dict[str, Scalar] = {"name": "OwnLoader", "num_workers": 0, "pin_memory": True, "shuffle": True}
    sites = [Site("DataLoader", "train.py", line, "OwnLoader.__init__", options)]
    request = example_request("input-bound", OWN_LOADER, sites=sites, setting={"num_workers": 4})
    after = edited(FIXERS["loader-workers"].rewrite(request))
    assert 'super().__init__(**{**self.init_kwargs, "num_workers": 4})' in after


@pytest.mark.parametrize(
    ("share", "cores", "counts"),
    [(0.5, 8, [2, 4, 7]), (0.75, 8, [7]), (0.96, 2, [2]), (0.9, 32, [31]), (0.96, 1, [1]), (1.0, 4, [4])],
)
def test_too_few_workers_for_what_a_program_without_any_waits_are_not_tried(
    share: float, cores: int, counts: list[int]
) -> None:
    text = f"{TOP}loader = DataLoader(data, batch_size=8, num_workers=0)\n"
    options: dict[str, Scalar] = {"name": "DataLoader", "num_workers": 0}
    sites = [Site("DataLoader", "train.py", naming(text, "DataLoader(")[0], None, options)]
    request = example_request("input-bound", text, sites=sites, facts=Facts(cpu_count=cores))
    request = replace(request, finding=replace(request.finding, share=share))
    assert FIXERS["loader-workers"].settings(request) == [{"num_workers": count} for count in counts]


def test_workers_stay_where_the_dictionary_of_a_loaders_options_is_shown() -> None:
    text = BUILDER.replace("    try:\n", "    print(loader_args)\n    try:\n")
    line = naming(text, "loader_class(dataset")[0]
    options: dict[str, Scalar] = {"name": "DataLoader", "num_workers": 0, "pin_memory": True, "shuffle": True}
    request = example_request("input-bound", text, sites=[Site("DataLoader", "train.py", line, None, options)])
    found = FIXERS["loader-workers"].rewrite(replace(request, setting={"num_workers": 4}))
    assert isinstance(found, Advice)
    assert "options that the program shows" in found.text
