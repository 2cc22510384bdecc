"""A loader keeps the options that the program prints, or decides by, as attributes of the loader."""

from __future__ import annotations

import pytest

from diagnose.fixer import Edits, Facts, Site, example_request
from diagnose.plugins import load

FIXERS = load().fixers
TOP = "from torch.utils.data import DataLoader\n\nrows = list(range(64))\n"


@pytest.mark.parametrize(
    ("shown", "edited"),
    [
        ("print(loader.num_workers)", {"loader-pin"}),
        ("print(loader.prefetch_factor)", {"loader-pin"}),
        ("print(f'{loader.pin_memory}')", {"loader-workers"}),
        ("print(getattr(loader, 'pin_memory', None))", {"loader-workers"}),
        ("print(type(iter(loader)).__name__)", {"loader-pin"}),
        ("batches = iter(loader)\nprint(batches.__class__)", {"loader-pin"}),
        ("for name in NAMES:\n    print(name, getattr(loader, name))", set()),
        ("for name, value in loader.__dict__.items():\n    print(name, value)", set()),
        ("described = vars(loader)", set()),
        ("described = inspect.getmembers(loader)", set()),
        ("print(getattr(loader, 'batch_size'), len(loader.dataset), vars(args))", {"loader-workers", "loader-pin"}),
        ("if loader.num_workers == 0:\n    rows.reverse()", {"loader-pin"}),
        ("size = 4 if getattr(loader, 'num_workers') else 8", {"loader-pin"}),
        ("size = max(4 - loader.num_workers, 1)", {"loader-pin"}),
    ],
)
def test_an_option_stays_that_the_program_shows_or_decides_by_as_an_attribute_of_its_loader(
    shown: str, edited: set[str]
) -> None:
    text = f"{TOP}loader = DataLoader(rows, shuffle=True)\n{shown}\n"
    facts = Facts(cpu_count=4, device_name="NVIDIA H200")
    site = Site("DataLoader", "train.py", 4, arguments={"num_workers": 0, "pin_memory": False})
    request = example_request("input-bound", text, sites=[site], facts=facts, setting={"num_workers": 2})
    answers = {name: FIXERS[name].rewrite(request) for name in ("loader-workers", "loader-pin")}
    assert {name for name, answer in answers.items() if isinstance(answer, Edits)} == edited, answers
    workers = answers["loader-workers"]
    assert not isinstance(workers, Edits) or ("pin_memory=True" in workers.files["train.py"]) is (
        "loader-pin" in edited
    )


@pytest.mark.parametrize(("shown", "edited"), [("len(loader)", True), ("print(loader.pin_memory)", False)])
def test_copies_wait_as_before_where_the_program_shows_whether_its_loader_pins(shown: str, edited: bool) -> None:
    text = f"import torch\n{TOP}loader = DataLoader(rows)\n{shown}\nfor x in loader:\n    x = x.cuda()\n"
    site = Site("DataLoader", "train.py", 5, arguments={"num_workers": 0, "pin_memory": False})
    facts = Facts(device_name="NVIDIA H200")
    request = example_request("pageable-copies", text, sites=[site], facts=facts, lines=[8])
    answer = FIXERS["nonblocking-copies"].rewrite(request)
    assert isinstance(answer, Edits) is edited, answer


@pytest.mark.parametrize(
    "bound", ["loader, n = {}, 3", "n, loader = 3, {}", "loader: DataLoader = {}", "self.loader = {}"]
)
def test_the_loader_is_known_by_what_it_is_bound_to(bound: str) -> None:
    built = bound.format("DataLoader(rows, shuffle=True)")
    for shown, edited in (("loader", False), ("others.rows", True)):
        text = f"{TOP}{built}\nprint({shown}.num_workers)\n"
        site = Site("DataLoader", "train.py", 4, arguments={"num_workers": 0})
        facts = Facts(cpu_count=4)
        request = example_request("input-bound", text, sites=[site], facts=facts, setting={"num_workers": 2})
        answer = FIXERS["loader-workers"].rewrite(request)
        assert isinstance(answer, Edits) is edited, answer


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("print(f'{train_loader.num_workers} workers')", False),
        ("print('workers: %d' % train_loader.num_workers)", False),
        ("notes = {'workers': train_loader.num_workers}", False),
        ("print(vars(train_loader))", False),
        ("print({name: value for name, value in train_loader.__dict__.items()})", False),
        ("for name in ('num_workers',):\n    print(getattr(train_loader, name))", False),
        ("print(getattr(train_loader, 'num_workers'))", False),
        ("assert train_loader.num_workers == 0", False),
        ("if train_loader.num_workers > 0:\n    print('workers')", False),
        ("def show(loader):\n    print(loader.num_workers)\n\n\nshow(train_loader)", False),
        ("loaders = {'train': train_loader}\nprint(loaders['train'].num_workers)", False),
        ("for each in [train_loader]:\n    count = each.num_workers\n    print(count)", False),
        ("threads = 8 - train_loader.num_workers", False),
        ("other = DataLoader(rows, num_workers=train_loader.num_workers)", False),
        ("for rows in train_loader:\n    count(rows)\nother = DataLoader(rows, num_workers=rows.num_workers)", True),
        ("train_loader.num_workers = 4", False),
        ("for batch in train_loader:\n    note = Note(batch)\n    note.num_workers = 4", True),
        ("print(len(train_loader))", True),
        ("print(train_loader.batch_size, getattr(train_loader, 'batch_size'))", True),
        ("for batch in train_loader:\n    print(vars(batch))", True),
    ],
)
def test_a_loader_whose_workers_the_program_reads_keeps_its_number(line: str, edited: bool) -> None:
    text = TOP + "train_loader = DataLoader(rows, shuffle=True)\n" + line + "\n"
    asked = example_request("input-bound", text, setting={"num_workers": 2})
    assert isinstance(FIXERS["loader-workers"].rewrite(asked), Edits) is edited


@pytest.mark.parametrize(
    ("line", "pinned"),
    [
        ("print(train_loader.pin_memory)", False),
        ("print(train_loader.__dict__)", False),
        ("print(train_loader.num_workers)", True),
        ("batch = batch.to(device, non_blocking=train_loader.pin_memory)", True),
        ("other = DataLoader(rows, pin_memory=train_loader.pin_memory)", True),
    ],
)
@pytest.mark.parametrize("name", ["loader-pin", "loader-workers"])
def test_a_loader_of_which_the_program_reads_whether_it_pins_is_not_pinned(name: str, line: str, pinned: bool) -> None:
    text = TOP + "train_loader = DataLoader(rows, shuffle=True)\n" + line + "\n"
    asked = example_request("input-bound", text, facts=Facts(device_name="NVIDIA H200"), setting={"num_workers": 2})
    answer = FIXERS[name].rewrite(asked)
    assert (isinstance(answer, Edits) and "pin_memory=True" in answer.files["train.py"]) is (
        pinned and not (name == "loader-workers" and "num_workers" in line)
    )
