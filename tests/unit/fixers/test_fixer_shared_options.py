"""A dictionary of options that others take too gets no key that would break them, and none that would not count."""

from __future__ import annotations

import pytest
from rewriting import imported

from diagnose.fixer import Advice, Edits, Facts, Site, example_request
from diagnose.plugins import load
from diagnose.source.settings.other_readers import has_other_readers
from diagnose.source.settings.shown_options import shows_mapping
from diagnose.source.tree.edits import parse

FIXER = load().fixers["loader-workers"]
_TOP = "from torch.utils.data import DataLoader\n\nrows = list(range(64))\n"
_TRAIN = "train_loader = DataLoader(rows, shuffle=True, **kwargs)\n"
_TEST = "test_loader = DataLoader(rows, **kwargs)\n"
_KWARGS = "kwargs = {'batch_size': 8}\n"


@pytest.mark.parametrize(
    ("program", "of_test"),
    [
        (_KWARGS + _TRAIN + "test_loader = DataLoader(rows, num_workers=0, **kwargs)\n", 0),
        (_KWARGS + "def count(batch_size):\n    return batch_size\n\n\ncount(**kwargs)\n" + _TRAIN + _TEST, 0),
        (_KWARGS + "kwargs['num_workers'] = 0\n" + _TRAIN + _TEST, 0),
        (_KWARGS + "kwargs |= {'num_workers': 0}\n" + _TRAIN + _TEST, 0),
        ("kwargs = {'batch_size': 8, 'num_workers': 0}\nkwargs.pop('num_workers')\n" + _TRAIN + _TEST, 0),
        (_KWARGS + _TRAIN + "kwargs.update({'num_workers': 1})\n" + _TEST, 1),
        (_KWARGS + _TRAIN + _TEST, 2),
        (_KWARGS + _TRAIN + "test_loader = DataLoader(rows, **dict(drop_last=True, **kwargs))\n", 2),
    ],
    ids=["own key", "function", "subscript", "or", "pop", "updated later", "shared", "dict"],
)
def test_the_training_loader_gets_workers_and_the_program_runs(program: str, of_test: int) -> None:
    text = _TOP + program
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.startswith("train_loader"))
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": 0, "shuffle": True, "batch_size": 8})
    answer = FIXER.rewrite(example_request("input-bound", text, sites=[site], setting={"num_workers": 2}))
    assert isinstance(answer, Edits), answer
    program_after = imported(answer.files["train.py"])
    assert program_after.train_loader.num_workers == 2
    assert program_after.test_loader.num_workers == of_test


@pytest.mark.parametrize("device", [None, "NVIDIA H200"])  # for which batches are to be pinned as well
@pytest.mark.parametrize(("workers", "edited"), [("count", False), ("0", True)])
def test_a_dictionary_that_may_have_another_number_from_elsewhere_is_left_as_it_is(
    workers: str, edited: bool, device: str | None
) -> None:
    made = f"if train:\n    kwargs = dict(num_workers={workers})\nelse:\n    kwargs = dict(num_workers=0)\n"
    site = Site("DataLoader", "train.py", 8, arguments={"num_workers": 0})
    facts = Facts(cpu_count=4, device_name=device)
    asked = example_request("input-bound", _TOP + made + _TRAIN, sites=[site], facts=facts, setting={"num_workers": 2})
    assert isinstance(FIXER.rewrite(asked), Edits if edited else Advice)


_SHOWN = "kwargs = {'batch_size': 8}\nprint(kwargs)\n" + _TRAIN
_CONFIG = (
    "class Config:\n    workers = 0\n    pin = False\n\n\nprint(vars(Config))\n"
    "train_loader = DataLoader(rows, shuffle=True, num_workers=Config.workers, pin_memory=Config.pin)\n"
)


@pytest.mark.parametrize(
    ("program", "left"),
    [
        (_SHOWN, "print(kwargs)"),
        (
            _SHOWN.replace("print(kwargs)", "for key, value in kwargs.items():\n    print(key, value)"),
            "{'batch_size': 8}",
        ),
        (_CONFIG, "workers = 0\n    pin = False"),
    ],
    ids=["printed", "item by item", "written"],
)
def test_options_that_are_shown_stay_as_they_are(program: str, left: str) -> None:
    text = _TOP + program
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.startswith("train_loader"))
    recorded = {"num_workers": 0, "shuffle": True, "pin_memory": False}
    site = Site("DataLoader", "train.py", line, arguments=recorded)
    facts = Facts(device_name="NVIDIA H200")
    asked = example_request("input-bound", text, sites=[site], facts=facts, setting={"num_workers": 2})
    answer = FIXER.rewrite(asked)
    assert isinstance(answer, Edits), answer
    assert left in answer.files["train.py"]
    assert imported(answer.files["train.py"]).train_loader.num_workers == 2


def test_a_number_of_workers_in_a_dictionary_that_is_shown_stays() -> None:
    text = _TOP + _SHOWN.replace("8}", "8, 'num_workers': 0}")
    site = Site("DataLoader", "train.py", 6, arguments={"num_workers": 0, "shuffle": True, "batch_size": 8})
    asked = example_request("input-bound", text, sites=[site], setting={"num_workers": 2})
    assert not isinstance(FIXER.rewrite(asked), Edits)


_LOGS = "import wandb\n\n\nclass Meter:\n    def update(self, value):\n        self.value = value\n\n\n"
_ARGS = (
    "from argparse import Namespace\n\nargs = Namespace(workers=0)\n{}\n"
    "train_loader = DataLoader(rows, shuffle=True, num_workers=args.workers)\n"
)
_VALUE = "workers = 0\n{}\ntrain_loader = DataLoader(rows, shuffle=True, num_workers=workers)\n"
_FILLED = "kwargs = {{'batch_size': 8, 'num_workers': 0}}\n{}\n" + _TRAIN


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        # A mapping, and what it fills.
        (_FILLED.format("more = {'lr': 0.1}\nmore.update(kwargs)"), False),
        (_FILLED.format("more = dict(lr=0.1)\nmore.setdefault('loader', kwargs)\ncount = more['lr']"), False),
        (_FILLED.format("more = {'lr': 0.1}\nmore.update(kwargs)\nprint(more)"), True),
        (_FILLED.format("more = {}\nlast = {}\nmore.update(kwargs)\nlast.update(more)\nprint(f'{last}')"), True),
        (_LOGS + _FILLED.format("wandb.config.update(kwargs)"), True),
        (_LOGS + _FILLED.format("config = wandb.config\nconfig.update(kwargs)"), True),
        (_LOGS + _FILLED.format("def note(config):\n    config.update(kwargs)\n"), True),
        (_FILLED.format("print([kwargs])"), True),
        (_FILLED.format("print(len(kwargs))"), False),
        # An object of options.
        (_LOGS + _ARGS.format("wandb.config.update(args)"), True),
        (_LOGS + _ARGS.format("wandb.config.update(vars(args))"), True),
        (_LOGS + _ARGS.format("Meter().update(args.workers + 1)"), False),
        (_ARGS.format("print('options:', [args])"), True),
        (_ARGS.format("def run(args):\n    args.rows = 9\n\n\nrun(args)"), False),
        # A single value.
        (_VALUE.format("print(str(workers))"), True),
        (_VALUE.format("print('workers: ' + str(max(workers, 1)))"), True),
        (_VALUE.format("options = {'num_workers': workers}\nprint(options)"), True),
        (_VALUE.format("print(len(rows[workers:]))"), True),
    ],
)
def test_a_default_that_is_shown_as_it_is_in_any_way_stays(program: str, shown: bool) -> None:
    text = _TOP + program
    site = Site("DataLoader", "train.py", text.count("\n"), arguments={"num_workers": 0, "shuffle": True})
    answer = FIXER.rewrite(example_request("input-bound", text, sites=[site], setting={"num_workers": 2}))
    if not shown:
        assert isinstance(answer, Edits), answer
    after = answer.files["train.py"] if isinstance(answer, Edits) else text
    kept = ("'num_workers': 0}", "Namespace(workers=0)", "\nworkers = 0\n")
    assert any(line in after for line in kept) is shown


def test_mappings_that_fill_each_other_are_followed_once() -> None:
    text = "one, two = {}, {}\none.update(two)\ntwo.update(one)\n"
    assert not shows_mapping({"train.py": text}, "one")
    assert shows_mapping({"train.py": text + "print(one)\n"}, "two")


_CHOSEN = "cuda = torch.cuda.is_available()\n{}" + _TRAIN


@pytest.mark.parametrize(
    "options",
    [
        "kwargs = {'num_workers': 1, 'pin_memory': True} if cuda else {}\n",
        "kwargs = {} if not cuda else dict(num_workers=1, pin_memory=True)\n",
        _KWARGS + "if cuda:\n    more = {'num_workers': 1, 'pin_memory': True}\n    kwargs.update(more)\n",
    ],
    ids=["conditional", "negated", "update"],
)
def test_options_for_the_accelerator_are_changed_and_those_for_the_cpu_are_not(options: str) -> None:
    text = "import torch\n" + _TOP + _CHOSEN.format(options)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.startswith("train_loader"))
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": 1, "shuffle": True, "pin_memory": True})
    facts = Facts(device_name="NVIDIA H200")
    asked = example_request("input-bound", text, sites=[site], facts=facts, setting={"num_workers": 2})
    answer = FIXER.rewrite(asked)
    assert isinstance(answer, Edits), answer
    after = answer.files["train.py"]
    assert after == text.replace("'num_workers': 1", "'num_workers': 2").replace("num_workers=1", "num_workers=2")


_PARSED = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--workers', type=int, default=0)\n"
    "args = parser.parse_args()\n{}\n"
)
_TAKEN = "train_loader = DataLoader(rows, shuffle=True, num_workers=args.workers)\n"


@pytest.mark.parametrize(
    ("program", "number"),
    [
        (_PARSED.format("") + _TAKEN, "default=2"),
        (_PARSED.format("other = DataLoader(rows, num_workers=args.workers // 2)") + _TAKEN, "default=2"),
        (_PARSED.format("") + _TAKEN.replace("workers)", "workers, persistent_workers=args.workers > 0)"), "default=2"),
        (
            _PARSED.format("")
            + "class Rows:\n    def __init__(self, count):\n        self.count = count\n    def batches(self):\n"
            "        return DataLoader(rows, shuffle=True, num_workers=self.count)\n"
            "train = Rows(args.workers).batches()",
            "default=2",
        ),
        (_PARSED.format("workers = args.workers") + _TAKEN.replace("args.workers", "workers"), "default=2"),
        (_PARSED.format("") + _TAKEN.replace("shuffle=True", "8 * args.workers + 8"), "max(args.workers, 2)"),
        (_PARSED.format("size = 8 * max(1, args.workers)") + _TAKEN, "max(args.workers, 2)"),
        (_PARSED.format("torch.manual_seed(args.workers)") + _TAKEN, "max(args.workers, 2)"),
        (_PARSED.format("if args.workers == 0:\n    epochs = 1") + _TAKEN, "max(args.workers, 2)"),
        (
            _PARSED.format("kwargs = {'num_workers': args.workers, 'batch_size': 8 + args.workers}")
            + "train_loader = DataLoader(rows, shuffle=True, **kwargs)\n",
            "max(args.workers, 2)",
        ),
    ],
)
def test_an_option_that_decides_more_than_workers_keeps_its_default(program: str, number: str) -> None:
    answer = FIXER.rewrite(example_request("input-bound", _TOP + program, setting={"num_workers": 2}))
    assert isinstance(answer, Edits), answer
    assert number in answer.files["train.py"]


_COUNTING = """
class Counting:
    def __init__(self):
        self.seen = []
    def __len__(self):
        return 8
    def __getitem__(self, i):
        self.seen.append(i)
        return i
class Rows:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return i
WORKERS = 0
held_out = Counting()
train_loader = DataLoader(Rows(), shuffle=True, num_workers=WORKERS)
other = DataLoader(held_out, num_workers={})
print(held_out.seen)
"""


@pytest.mark.parametrize(("workers", "edited"), [("0", True), ("WORKERS", False)])
def test_a_number_that_another_loader_takes_as_well_is_one_that_both_may_have(workers: str, edited: bool) -> None:
    text = "from torch.utils.data import DataLoader\n" + _COUNTING.format(workers)
    answer = FIXER.rewrite(example_request("input-bound", text, setting={"num_workers": 2}))
    assert isinstance(answer, Edits) is edited


_MADE_ELSEWHERE = (
    "def build(options):\n    return DataLoader(rows, **options)\n\n\n"
    "builders = [build]\ntrain_loader = builders[0]({})\n"
)
_IN_A_FUNCTION = (
    "options = {'pin_memory': False}\n\n\ndef build(workers):\n"
    "    return DataLoader(rows, num_workers=workers, **options)\n\n\ntrain_loader = build({})\n"
)


@pytest.mark.parametrize(("options", "edited"), [("batch_size=4", True), ("**options", False)])
def test_a_dictionary_gives_workers_to_no_loader_that_may_have_none(options: str, edited: bool) -> None:
    text = "from torch.utils.data import DataLoader\n" + _COUNTING.replace(
        "WORKERS = 0", "options = {{'batch_size': 4}}"
    )
    text = text.replace("num_workers=WORKERS", "**options").replace("num_workers={}", "{}").format(options)
    answer = FIXER.rewrite(example_request("input-bound", text, setting={"num_workers": 2}))
    assert isinstance(answer, Edits) is edited, answer


@pytest.mark.parametrize("fixer", ["persistent-workers", "loader-prefetch"])
@pytest.mark.parametrize(
    ("program", "without", "with_workers"),
    [(_MADE_ELSEWHERE, "{}", "{'num_workers': 2}"), (_IN_A_FUNCTION, "rows[0]", "rows[2]")],
    ids=["unknown options", "options and a parameter"],
)
def test_what_needs_workers_is_asked_for_only_with_them(
    fixer: str, program: str, without: str, with_workers: str
) -> None:
    program = program.replace("({})", "(<count>)")
    text = _TOP + program.replace("<count>", with_workers)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "return DataLoader" in each)
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": 2})
    answer = load().fixers[fixer].rewrite(example_request("input-bound", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    after = answer.files["train.py"]
    kept = imported(after).train_loader
    assert (kept.persistent_workers, kept.prefetch_factor) != (False, 2)
    assert imported(after.replace(f"({with_workers})", f"({without})")).train_loader.num_workers == 0


@pytest.mark.parametrize("fixer", ["persistent-workers", "loader-prefetch"])
def test_what_needs_workers_stands_in_the_dictionary_that_has_them(fixer: str) -> None:
    text = _TOP + _KWARGS + "if rows:\n    kwargs.update({'num_workers': 2})\n" + _TRAIN
    site = Site("DataLoader", "train.py", 7, arguments={"num_workers": 2, "shuffle": True})
    answer = load().fixers[fixer].rewrite(example_request("input-bound", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    assert "update({'num_workers': 2, '" in answer.files["train.py"]


@pytest.mark.parametrize("fixer", ["persistent-workers", "loader-prefetch"])
@pytest.mark.parametrize(
    ("kept", "own", "shared"), [("", "num_workers=2, ", False), ("", "", False), (", 'num_workers': 2", "", True)]
)
def test_a_dictionary_asks_nothing_of_workers_that_a_loader_may_not_have(
    fixer: str, kept: str, own: str, shared: bool
) -> None:
    text = _TOP + f"kwargs = {{'batch_size': 8{kept}}}\n" + _TRAIN.replace("shuffle", own + "shuffle") + _TEST
    site = Site("DataLoader", "train.py", 5, arguments={"num_workers": 2, "shuffle": True, "batch_size": 8})
    answer = load().fixers[fixer].rewrite(example_request("input-bound", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    after = answer.files["train.py"]
    assert (f"kwargs = {{'batch_size': 8{kept}}}" not in after) is shared
    if own or shared:
        imported(after)


_OVERRIDDEN = {
    "starred": "test_loader = DataLoader(rows, **{**kwargs, 'num_workers': 0})\n",
    "starred before": "others = {**kwargs, 'num_workers': 0}\ntest_loader = DataLoader(rows, **others)\n",
    "dict": "test_loader = DataLoader(rows, **dict(kwargs, num_workers=0))\n",
    "joined": "test_loader = DataLoader(rows, **(kwargs | {'num_workers': 0}))\n",
    "joined by a call": "test_loader = DataLoader(rows, **(kwargs | dict(num_workers=0)))\n",
    "joined in place": "others = kwargs\nothers |= dict(num_workers=0)\ntest_loader = DataLoader(rows, **others)\n",
    "set": "others = dict(kwargs)\nothers['num_workers'] = 0\ntest_loader = DataLoader(rows, **others)\n",
    "updated": "others = kwargs.copy()\nothers.update(num_workers=0)\ntest_loader = DataLoader(rows, **others)\n",
}


@pytest.mark.parametrize("fixer", ["persistent-workers", "loader-prefetch"])
@pytest.mark.parametrize("other", _OVERRIDDEN.values(), ids=_OVERRIDDEN)
def test_a_dictionary_asks_nothing_of_workers_that_another_number_may_take_away(fixer: str, other: str) -> None:
    text = _TOP + "kwargs = {'batch_size': 8, 'num_workers': 2}\n" + _TRAIN + other
    site = Site("DataLoader", "train.py", 5, arguments={"num_workers": 2, "shuffle": True, "batch_size": 8})
    answer = load().fixers[fixer].rewrite(example_request("input-bound", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    made = imported(answer.files["train.py"])
    assert (made.train_loader.persistent_workers, made.train_loader.prefetch_factor) != (False, 2)
    assert made.test_loader.num_workers == 0


@pytest.mark.parametrize("fixer", ["persistent-workers", "loader-prefetch"])
@pytest.mark.parametrize("change", ["kwargs['num_workers'] = len(rows)", "kwargs.update(num_workers=len(rows))"])
def test_workers_that_come_by_a_condition_are_asked_for(fixer: str, change: str) -> None:
    text = _TOP + f"kwargs = {{'batch_size': 8}}\nif rows:\n    {change}\n" + _TRAIN
    site = Site("DataLoader", "train.py", 7, arguments={"num_workers": 2, "shuffle": True, "batch_size": 8})
    answer = load().fixers[fixer].rewrite(example_request("input-bound", text, sites=[site]))
    assert isinstance(answer, Edits), answer
    made = imported(answer.files["train.py"].replace("if rows:", "if not rows:"))
    assert made.train_loader.num_workers == 0


def test_kept_workers_are_not_asked_for_where_another_number_may_take_them_away() -> None:
    text = _TOP + "kwargs = {'num_workers': 2, 'persistent_workers': False}\n" + _TRAIN
    site = Site("DataLoader", "train.py", 5, arguments={"num_workers": 2, "persistent_workers": False})
    fixer = load().fixers["persistent-workers"]
    assert isinstance(fixer.rewrite(example_request("input-bound", text, sites=[site])), Edits)
    answer = fixer.rewrite(example_request("input-bound", text + _OVERRIDDEN["starred"], sites=[site]))
    assert isinstance(answer, Advice), answer


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("batch = 8 * args.workers", True),
        ("batch = 8 * getattr(args, 'workers', 1)", True),
        ("batch = 8 * vars(args).get('workers')", True),
        ("batch = 8 * vars(args).pop('workers')", True),
        ("others = getattr(args, 'seed', 1) * 2", False),
        ("print(getattr(args, 'workers'))", False),
        ("test_loader = DataLoader(rows, num_workers=getattr(args, 'workers', 0))", False),
    ],
)
def test_a_setting_may_have_other_readers_by_its_name_as_text(line: str, other: bool) -> None:
    source = parse(_TOP + _ARGS.format(line))
    assert source is not None
    given = next(
        arg.value
        for call in source.calls_named("DataLoader")
        for arg in call.args
        if source.code(arg.value) == "args.workers"
    )
    assert has_other_readers({"train.py": source.text}, source, given) is other


@pytest.mark.parametrize(
    ("made", "edited"), [("DataLoader, shuffle=False", True), ("DataLoader, **options", False)], ids=["own", "shared"]
)
def test_a_partial_loader_gets_no_workers_where_its_samples_leave_notes(made: str, edited: bool) -> None:
    text = "from functools import partial\nfrom torch.utils.data import DataLoader\n" + _COUNTING.replace(
        "WORKERS = 0", "options = dict(num_workers=0)"
    )
    text = text.replace("num_workers=WORKERS", "**options").replace(
        "DataLoader(held_out, num_workers={})", "make(held_out)"
    )
    text = text.replace("train_loader =", f"make = partial({made})\ntrain_loader =")
    answer = FIXER.rewrite(example_request("input-bound", text, setting={"num_workers": 2}))
    assert isinstance(answer, Edits) is edited, answer
