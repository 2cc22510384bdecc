"""Whether making a sample draws random numbers is read from the code that a loader runs for each sample alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.fixer import Advice, Edits, Facts, Gate, Request, Scalar, Site, example_request, lines_with
from diagnose.plugins import load
from diagnose.source.samples.dataset_rng import Draw

FIXER = load().fixers["loader-workers"]
TOP = """import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
"""
IMAGES = """
class Images(Dataset):
    def __init__(self, transform=None):
        rng = random.Random(0)
        self.noise = np.random.default_rng(1)
        self.order = [rng.choice("abc") for _ in range(9)] + [random.random()]
        self.transform = transform

    def __getitem__(self, index):
        {sample}

    def shuffle_all(self):
        random.shuffle(self.order)
"""
LOADER = "loader = DataLoader({dataset}, batch_size=8{more})\n"


def drawn(text: str, **recorded: Scalar) -> Draw | None:
    """What the samples of the loader in a program draw."""
    site = Site("DataLoader", "train.py", lines_with(text, "DataLoader(")[-1], arguments=recorded)
    (loader,) = example_request("input-bound", text, sites=[site]).loaders().loaders
    return loader.draw()


def program(sample: str, dataset: str = "Images()", more: str = "") -> str:
    """A program with a dataset of its own, which returns this for a sample."""
    return TOP + IMAGES.format(sample=sample) + LOADER.format(dataset=dataset, more=more)


@pytest.mark.parametrize(
    "code",
    [
        "np.random.randint",
        "random.uniform",
        "torch.randn",
        "transforms.RandomCrop.get_params",
        "np.random.default_rng",
        "self.order.normal_",
    ],
)
def test_a_draw_for_each_sample_is_seen(code: str) -> None:
    found = drawn(program(f"return {code}()"))
    assert found is not None
    assert (found.code, found.copied) == (code, False)


@pytest.mark.parametrize("code", ["np.random.randint", "random.uniform", "torch.randn"])
def test_a_draw_is_seen_by_a_module_that_a_star_import_brings(code: str) -> None:
    imports = "import random\nimport numpy as np\nimport torch\n"
    found = drawn(program(f"return {code}()").replace(imports, "from tools import *\n"))
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize(
    "sample",
    [
        "return self.order[index]",  # what the constructor drew is the same in every worker
        "return np.random.default_rng(index).normal()",
        "return random.Random(index).random()",
        "return torch.rand(3, generator=torch.Generator().manual_seed(index))",
        "np.random.seed(index); return np.random.normal()",
    ],
)
def test_a_sample_that_depends_on_its_index_alone_draws_nothing(sample: str) -> None:
    assert drawn(program(sample)) is None


@pytest.mark.parametrize(
    "table",
    [
        "torch.randn(512, 64, generator=torch.Generator().manual_seed(1))",
        "torch.randint(0, 9, (512,), generator=torch.Generator()).float()",
        "np.random.default_rng(1).standard_normal((512, 64))",
        "np.random.RandomState(4).rand(512).astype(np.float32)",
        "[random.Random(3).random() for _ in range(512)]",
    ],
)
def test_a_table_of_numbers_drawn_once_is_no_generator(table: str) -> None:
    text = program("return self.noise[index]").replace("np.random.default_rng(1)", table, 1)
    assert drawn(text) is None


@pytest.mark.parametrize(
    "kept",
    [
        "torch.Generator().manual_seed(1)",
        "np.random.default_rng(1).spawn(1)[0]",
        "dict(rng=random.Random(3))",
        "np.random.RandomState(4).rand",
    ],
)
def test_a_generator_that_a_dataset_keeps_is_one_however_it_came_to_be(kept: str) -> None:
    found = drawn(program("return self.noise").replace("np.random.default_rng(1)", kept, 1))
    assert found is not None
    assert (found.code, found.copied) == ("self.noise", True)


def test_tensors_that_the_program_drew_beforehand_are_no_draw_of_a_sample() -> None:
    made = "X = torch.randn(320, 16)\nY = torch.randint(0, 9, (320,))\n"
    text = TOP + made + LOADER.format(dataset="torch.utils.data.TensorDataset(X, Y)", more="")
    assert drawn(text) is None
    kept = program("return X[index]").replace("class Images", f"{made}class Images")
    assert drawn(kept) is None


def test_what_training_draws_is_no_sample() -> None:
    text = program("return self.order[index]") + "\ndef train():\n    return torch.randn(3) * random.random()\n"
    assert drawn(text) is None


def test_a_draw_is_found_through_the_methods_and_functions_that_a_sample_needs() -> None:
    text = (
        TOP + "def jitter(x):\n    return x * random.uniform(0, 1)\n" + IMAGES.format(sample="return self.one(index)")
    )
    text += "    def one(self, index):\n        return jitter(self.order[index])\n" + LOADER.format(
        dataset="Images()", more=""
    )
    found = drawn(text)
    assert found is not None
    assert found.code == "random.uniform"


@pytest.mark.parametrize(
    "dataset",
    [
        "datasets.ImageFolder('x', transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()]))",
        "Images(transform=transforms.RandomHorizontalFlip())",
        "Images(lambda x: x + torch.rand(1))",
        "torch.utils.data.Subset(Images(augmented), range(4))",
    ],
)
def test_transforms_that_draw_are_seen_where_the_dataset_is_made(dataset: str) -> None:
    text = program("return self.transform(index)", dataset)
    text = text.replace("\nclass", "\naugmented = transforms.Compose([transforms.ColorJitter(0.4)])\n\nclass", 1)
    assert drawn(text) is not None


def test_transforms_of_a_function_that_builds_the_dataset_are_seen() -> None:
    text = (
        TOP + "def build(train):\n    aug = transforms.RandAugment()\n    return datasets.CIFAR10('x', transform=aug)\n"
    )
    assert drawn(text + LOADER.format(dataset="build()", more="")) is not None


def test_a_collate_function_of_the_programs_own_is_part_of_a_sample() -> None:
    text = program("return index", more=", collate_fn=Mixed(0.4)")
    text = text.replace(
        "\nclass", "\nclass Mixed:\n    def __call__(self, rows):\n        return np.random.beta(1, 1)\n\nclass", 1
    )
    assert drawn(text) is not None


def test_a_dataset_that_the_run_saw_is_followed_where_the_loader_takes_a_parameter() -> None:
    text = TOP + IMAGES.format(sample="return torch.rand(3)") + "\ndef make(dataset):\n    return DataLoader(dataset)\n"
    assert drawn(text) is None
    assert drawn(text, dataset="Images") is not None


def asked(text: str, workers: int = 0, wanted: int = 4) -> Edits | Advice:
    site = Site("DataLoader", "train.py", lines_with(text, "DataLoader(")[-1], arguments={"num_workers": workers})
    answer = FIXER.rewrite(example_request("input-bound", text, sites=[site], setting={"num_workers": wanted}))
    assert answer is not None
    return answer


def test_workers_for_samples_that_draw_change_the_training_and_say_why() -> None:
    answer = asked(program("return np.random.normal()"))
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING
    assert "np.random.normal" in answer.because
    assert asked(program("return self.order[index]")).gate is None  # type: ignore[union-attr]


@pytest.mark.parametrize("sample", ["return self.noise.normal()", "return helper(self.noise)"])
def test_no_more_workers_where_each_would_have_a_copy_of_the_generator(sample: str) -> None:
    answer = asked(program(sample))
    assert isinstance(answer, Advice)
    assert "all would draw the same" in answer.text
    assert isinstance(asked(program(sample), wanted=1), Advice)  # each epoch has a new one, in that state again
    assert isinstance(asked(program(sample), workers=2, wanted=1), Edits)


def test_workers_that_are_seeded_apart_may_have_a_generator_of_their_own() -> None:
    init = "\ndef init(worker):\n    torch.utils.data.get_worker_info().dataset.noise = np.random.default_rng(worker)\n"
    text = program("return self.noise.normal()", more=", worker_init_fn=init").replace("\nclass", f"{init}\nclass", 1)
    answer = asked(text)
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING


def test_workers_whose_setting_up_changes_what_samples_read_are_left_alone() -> None:
    """Without workers nothing calls it."""
    init = "\ndef init(worker):\n    torch.utils.data.get_worker_info().dataset.order = [worker]\n"
    text = program("return self.order[index]", more=", worker_init_fn=init").replace("\nclass", f"{init}\nclass", 1)
    answer = asked(text)
    assert isinstance(answer, Advice)
    assert "has a worker_init_fn that sets `torch.utils.data.get_worker_info().dataset.order`" in answer.text
    assert isinstance(asked(text, workers=2), Edits)


@pytest.mark.parametrize(
    ("seed", "edits"), [("0", False), ("7 + worker", True), ("torch.initial_seed() % 2**32", True)]
)
def test_a_seed_that_is_alike_in_all_workers_is_left_alone(seed: str, edits: bool) -> None:
    text = program("return np.random.normal()", more=f", worker_init_fn=lambda worker: np.random.seed({seed})")
    assert isinstance(asked(text), Edits) is edits


ALONE = Facts()


def counted(share: float, cores: int, present: int = 0, job: Facts = ALONE) -> list[Scalar]:
    """The numbers of workers that are tried."""
    return [setting.get("num_workers") for setting in FIXER.settings(waiting(share, cores, present, job))]


def waiting(share: float, cores: int, present: int = 0, job: Facts = ALONE) -> Request:
    """A step that waits for its batch for this share of its time."""
    text = program("return index", more=f", num_workers={present}")
    site = Site("DataLoader", "train.py", lines_with(text, "DataLoader(")[-1], arguments={"num_workers": present})
    facts = replace(job, cpu_count=cores)
    request = example_request("input-bound", text, sites=[site], facts=facts)
    return replace(request, finding=replace(request.finding, share=share))


def test_the_first_number_of_workers_suffices_by_measurement() -> None:
    # 0.71 / 0.29 is 2.4 batches of work in a step that does not wait; twice that many workers are 4.9.
    assert counted(0.71, 16) == [8, 15]


def test_workers_that_are_there_are_at_work_all_the_time() -> None:
    # One worker takes 1 / 0.29 steps that do not wait for a batch; twice that many are 6.9.
    assert counted(0.71, 16, present=1) == [8, 15]
    assert counted(0.2, 16, present=2) == [8, 15]
    assert counted(0.82, 64, present=1) == [16, 32, 63]


def ranks(of_job: int, on_host: int | None) -> Facts:
    return Facts(world_size=of_job, local_world_size=on_host)


def test_ranks_of_a_host_share_its_cores() -> None:
    assert counted(0.71, 64, job=ranks(8, 8)) == [7]
    assert counted(0.71, 64, job=ranks(64, 64)) == [1]


def test_ranks_of_other_hosts_take_none_of_this_ones_cores() -> None:
    assert counted(0.71, 64, job=ranks(64, 8)) == [7]
    assert counted(0.71, 16, job=ranks(2, 1)) == counted(0.71, 16)


def test_ranks_that_nobody_places_are_counted_on_this_host_and_that_is_said() -> None:
    unknown, known = ranks(8, None), ranks(8, 8)
    assert counted(0.71, 64, job=unknown) == counted(0.71, 64, job=known)
    words = "shared out among all 8 ranks, as nothing says how many are on this host"
    for present in (0, 7):
        told, silent = (FIXER.rewrite(waiting(0.71, 64, present, job)) for job in (unknown, known))
        assert words in str(told)
        assert words not in str(silent)


def test_what_the_run_saw_of_a_librarys_dataset_counts_too() -> None:
    text = TOP + "loader = DataLoader(library.dataset('x'), batch_size=8, shuffle=True)\n"
    line = lines_with(text, "DataLoader(")[-1]
    built = Site("DataLoader", "train.py", line, arguments={"num_workers": 0, "dataset": "ImageDataset"})

    def gate_with(dataset: str) -> Gate | None:
        drew = Site("draws", "train.py", line, arguments={"dataset": dataset, "generators": "random"})
        answer = FIXER.rewrite(example_request("input-bound", text, sites=[built, drew], setting={"num_workers": 4}))
        assert isinstance(answer, Edits)
        return answer.gate

    assert gate_with("ImageDataset") is Gate.TRAINING
    assert gate_with("AnotherDataset") is None


@pytest.mark.parametrize(
    "kept",
    [
        "self.noise: np.random.Generator = np.random.default_rng(1)",
        "self.noise, self.other = np.random.default_rng(1), 2",
        "self.noise = noise",
    ],
)
def test_a_generator_is_kept_however_it_is_bound(kept: str) -> None:
    text = program("return self.noise.normal()", "Images(np.random.default_rng(3))")
    text = text.replace("transform=None", "noise").replace("self.noise = np.random.default_rng(1)", kept)
    found = drawn(text)
    assert found is not None
    assert found.copied


def test_a_generator_of_the_class_is_kept() -> None:
    text = program("return self.shared.random()").replace(
        "(Dataset):", "(Dataset):\n    shared = random.Random(0)\n", 1
    )
    found = drawn(text)
    assert found is not None
    assert found.copied


def test_a_process_that_asks_for_its_own_memory_sets_no_worker_apart() -> None:
    text = program("return self.noise.normal()") + "print(psutil.Process(os.getpid()).memory_info())\n"
    assert isinstance(asked(text), Advice)


def test_a_seed_for_the_generators_of_the_process_is_none_for_a_kept_one() -> None:
    seed = "\ndef seed_worker(worker):\n    np.random.seed(torch.initial_seed() % 2**32)\n"
    text = program("return self.noise.normal()", more=", worker_init_fn=seed_worker")
    assert isinstance(asked(text.replace("\nclass", f"{seed}\nclass", 1)), Advice)


@pytest.mark.parametrize(
    "sample",
    [
        "return F.dropout(self.order, 0.5)",
        "return self.order.multinomial(1)",
        "return torch.distributions.Beta(1.0, 1.0).sample()",
        "return self.table.sample(3)",
        "return [*map(random.choice, self.order)]",
        "return self.pick(9)",
        "return choose(self.order)",
        "return source.randint(9)",
        "return A.HorizontalFlip(p=0.1)(image=self.order)",
    ],
)
def test_a_draw_is_seen_by_whatever_it_is_made(sample: str) -> None:
    text = program(sample).replace("self.order =", "self.pick = np.random.permutation\n        self.order =", 1)
    text = text.replace(
        "\nclass",
        "\nimport albumentations as A\nimport torch.nn.functional as F\n"
        "choose, source = random.choice, np.random\n\nclass",
        1,
    )
    found = drawn(text if "pick" in sample else text.replace("np.random.permutation", "None"))
    assert found is not None
    assert not found.copied


@pytest.mark.parametrize(
    "sample",
    [
        "return random.Random(index).sample(self.order, 3)",
        "rng = np.random.default_rng(index); return rng.choice(9)",
        "rng = random.Random(index); return rng.sample(self.order, 3)",
        "return self.table.sample(3, random_state=index)",
        "return isinstance(self.order, (np.random.Generator, random.Random))",
    ],
)
def test_a_draw_with_a_seed_of_the_sample_is_none(sample: str) -> None:
    assert drawn(program(sample)) is None


@pytest.mark.parametrize(
    "jitter",
    [
        "def jitter(seed):\n    rng = np.random.default_rng(seed)\n"
        "    def apply(x):\n        return x + rng.normal()\n    return apply\n",
        "def jitter(seed):\n    rng: random.Random = random.Random(seed)\n    return lambda x: x + rng.random()\n",
        "class jitter:\n    def __init__(self, seed):\n        pass\n"
        "    def __call__(self, x, rng=np.random.default_rng(0)):\n        return x + rng.normal()\n",
    ],
)
def test_a_generator_of_a_function_around_the_sample_is_kept(jitter: str) -> None:
    text = program("return self.transform(index)", "Images(jitter(3))").replace("\nclass", f"\n{jitter}\nclass", 1)
    found = drawn(text)
    assert found is not None
    assert found.copied
    assert isinstance(asked(text, wanted=1), Advice)  # it would begin anew in each epoch's worker
