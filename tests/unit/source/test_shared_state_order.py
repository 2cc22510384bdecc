"""When a program changes what samples read, or their order: before training, between epochs or while batches come."""

from __future__ import annotations

import pytest
from dataset_programs import NOISY, asked, program, refused

from diagnose.fixer import Edits, Gate

ORDER = """
class Hard:
    def __init__(self, n):
        self.losses = [0.0] * n
    def __iter__(self):
        yield from sorted(range(len(self.losses)), key=self.losses.__getitem__)
    def __len__(self):
        return len(self.losses)
"""


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (program(top=ORDER, options=", sampler=order", step="order.losses[step] = float(loss)  # !"), "# !"),
        (program(top=ORDER.replace("yield from", "self.turn += 1  # !\n        yield from"), options=", sampler=order"), "# !"),  # noqa: E501
        (program(top=ORDER.replace("yield from sorted(", "for i in (").replace("__)", "__):\n            yield random.randrange(9)")  # noqa: E501
                 .replace("(range(len(self.losses)), key=self.losses.__getitem__)", "range(9)"), options=", sampler=order"),  # noqa: E501
         "random.randrange"),
    ],
)  # fmt: skip
def test_an_order_that_training_decides_is_not_asked_for_ahead(text: str, mark: str) -> None:
    text = text.replace("    loader =", "    order = Hard(9)\n    loader =").replace("shuffle=True", "drop_last=True")
    refused("loader-workers", text, mark)


def seeded(step: str = "pass", epoch: str = "pass", options: str = ", generator=g") -> str:
    """A program whose loader draws its order from a generator of the program's."""
    text = program(options=options, step=step, epoch=epoch)
    return text.replace("    loader =", "    g = torch.Generator()\n    loader =")


@pytest.mark.parametrize(
    "text",
    [
        seeded("noise = torch.randn(3, generator=g)  # !"),
        seeded("torch.save(g.get_state(), 'g.pt')  # !"),
        seeded("order = torch.randperm(9, generator=g)  # !", options=", sampler=RandomSampler(data, generator=g)"),
    ],
)
def test_an_order_from_a_generator_that_training_reads_is_not_asked_for_ahead(text: str) -> None:
    refused("loader-workers", text, "# !")


@pytest.mark.parametrize("text", [seeded(), seeded(epoch="g.manual_seed(epoch)"), seeded("g2 = torch.Generator()")])
def test_an_order_from_a_generator_of_its_own_may_be_asked_for_ahead(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)


BETWEEN = [
    (program(NOISY, "self.strength = 0.0", epoch="data.strength = epoch  # !"), "# !"),
    (program("return i * cfg.s, i", top="class cfg:\n    s = 1\n", epoch="cfg.s = epoch  # !"), "# !"),
    (program("return i * CFG['s'], i", top="CFG = {'s': 1}\n", epoch="CFG['s'] = epoch  # !"), "# !"),
    (program("return i * S, i", top="S = 1\n", epoch="global S\nS = epoch  # !"), "# !"),
    (program("return i * S, i", top="S = 1\n", epoch="globals()['S'] = epoch  # !"), "# !"),
]


@pytest.mark.parametrize("text", [text for text, _ in BETWEEN])
def test_what_changes_between_epochs_is_seen_by_workers_that_are_started_anew(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)


CALLS = "CFG = {'s': 1}\ndef f0():\n    CFG['s'] = 2\n"
CALLS += "".join(f"def f{at}():\n    f{at - 1}()\n    f{at - 1}()\n" for at in range(1, 60))


def test_functions_that_call_each_other_on_many_ways_are_looked_at_once_each() -> None:
    early = program("return i * CFG['s'], i", top=CALLS).replace("    paths = sorted", "    f59()\n    paths = sorted")
    assert isinstance(asked("loader-workers", early), Edits)
    refused("loader-workers", program("return i * CFG['s'], i", top=CALLS, step="f59()"), "CFG['s'] = 2")


BLOCK = """
class Block(nn.Module):
    def __init__(self, setup):
        super().__init__()
        self.setup = setup
    def forward(self, x):
        return self.setup(x)
CFG = {"s": 1}
def setup():
    CFG["s"] = 2  # !
"""
GATE = """
class Gate(nn.Module):
    def forward(self, x):
        self.seen += 1  # !
        return x
"""
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.transform = Gate()
"""


def test_a_parameter_or_an_attribute_of_the_name_of_a_function_is_no_call_of_it() -> None:
    text = program("return i * CFG['s'], i", top=BLOCK).replace("    paths = sorted", "    setup()\n    paths = sorted")
    assert isinstance(asked("loader-workers", text), Edits)
    refused("loader-workers", text.replace("            loss =", "            setup()\n            loss ="), "# !")


def test_what_a_model_keeps_under_the_name_of_what_samples_read_is_none_of_theirs() -> None:
    sample = "return self.transform(self.paths[i]), i"
    assert isinstance(asked("loader-workers", program(sample, top=GATE + MODEL)), Edits)
    given = program(sample, top=GATE, dataset="Images(paths)\n    data.transform = Gate()")
    refused("loader-workers", given, "# !")


AHEAD = """
class Ahead:
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        for batch in self.batches:
            yield batch
"""


def test_a_loop_over_an_object_that_iterates_over_the_loader_is_an_epoch() -> None:
    text = program(NOISY, "self.strength = 0.0", epoch="data.strength = epoch  # !", top=AHEAD)
    through = text.replace("enumerate(loader)", "enumerate(Ahead(loader))")
    assert isinstance(asked("loader-workers", through), Edits)
    held = through.replace("enumerate(Ahead(loader))", "enumerate(batches)").replace(
        "    for epoch", "    batches = iter(Ahead(loader))\n    for epoch"
    )
    refused("loader-workers", held, "# !")


STEPS = """
def steps(count):
    order = list(range(count))[::-1]
    order = tqdm(order)
    for step in order:
        yield step
"""
GUARD = "@contextmanager\ndef timed():\n    yield\n"
ENDLESS = "def endless(loader):\n    while True:\n        for batch in loader:\n            yield batch\n"
PASSED_ON = "def passed_on(loader):\n    yield from loader\n"
ONE_OF = "def one_of(loaders):\n    loaders = [loaders, loaders]\n    for batch in loaders[0]:\n        yield batch\n"
SHOWN = "    shown = next(iter(loader))\n    for epoch"
KEPT = "    shown = iter(loader)\n    for epoch"


@pytest.mark.parametrize(
    ("top", "before", "held"),
    [
        (STEPS, "    for epoch", False),
        (GUARD, "    for epoch", False),
        ("", SHOWN, False),
        (ENDLESS, "    for epoch", True),
        (PASSED_ON, "    for epoch", True),
        (ONE_OF, "    for epoch", True),
        ("", KEPT, True),
    ],
    ids=["numbers", "context manager", "one batch", "endless", "yield from", "one of several", "iterator"],
)
def test_only_an_iterator_that_may_be_the_loaders_is_held_beside_an_epoch(top: str, before: str, held: bool) -> None:
    text = program(NOISY, "self.strength = 0.0", epoch="data.strength = epoch  # !", top=top)
    text = text.replace("    for epoch", before)
    if held:
        refused("loader-workers", text, "# !")
    else:
        assert isinstance(asked("loader-workers", text), Edits)


LINES = """
def read(path):
    paths = []
    for line in open(path):
        paths.append(line)
    return paths
"""
LISTED = "    paths = read('list.txt')\n    data"
FILLED = "self.groups = {}\nfor i, path in enumerate(paths):\n    self.groups[i] = path"
GROUPED = "self.group()"
LATER = "    more = DataLoader(Images(read('more.txt')), batch_size=8)\n    model ="
KEPT_ELSEWHERE = LINES.replace("(line)", "(line)  # !").replace("    return", "    Images.paths = paths\n    return")
GROUP = "def group(self):\n    self.groups = {}  # !\n    for i in range(9):\n        self.groups[i] = i\n"


def grouped(init: str = FILLED, more: str = "", epoch: str = "pass", step: str = "pass") -> str:
    """A program whose samples read `self.groups`."""
    return program("return self.groups[i], i", init, more, epoch=epoch, step=step)


@pytest.mark.parametrize("fixer", ["loader-workers", "persistent-workers"])
@pytest.mark.parametrize(
    "text",
    [
        program(top=LINES).replace("    data", LISTED),
        program(top=LINES).replace("    data", LISTED).replace("    model =", LATER),
        program().replace("    data", "    for name in open('more.txt'):\n        paths.append(name)\n    data"),
        grouped(),
        grouped(GROUPED, GROUP),
        grouped(GROUPED, GROUP).replace("    model =", "    other = Images(paths)\n    model ="),
    ],
    ids=["read", "read again later", "in main", "constructor", "method", "another later"],
)
def test_what_a_dataset_is_filled_with_before_there_is_a_loader_is_seen_by_workers(fixer: str, text: str) -> None:
    assert isinstance(asked(fixer, text), Edits)


@pytest.mark.parametrize(
    "text",
    [
        grouped(GROUPED, GROUP, step="data.group()"),
        program(
            "return S[i], i",
            top="S = []\ndef read(path):\n    for line in path:\n        S.append(line)  # !\n",
            step="read(x)",
        ),
        program(top=KEPT_ELSEWHERE, step="read('more.txt')").replace("    data", LISTED),
    ],
    ids=["method", "function", "kept elsewhere"],
)
def test_what_fills_a_dataset_while_batches_come_is_not_seen_by_workers(text: str) -> None:
    refused("loader-workers", text, "# !")


def test_the_variable_of_a_comprehension_is_no_other_of_its_name() -> None:
    text = program(dataset="Images([p for p in paths])", step="p = x.clone()\np.mul_(2)  # !")
    assert isinstance(asked("loader-workers", text), Edits)
    refused("loader-workers", text.replace("[p for p in paths]", "p"), "# !")


def test_the_data_of_a_layers_weight_is_not_the_data_of_a_dataset() -> None:
    sample, init = "return self.data[i], i", "self.data = load(paths)"
    text = program(sample, init, step="layers[0].weight.data = model.weight.data * 0.5")
    assert isinstance(asked("loader-workers", text), Edits)
    refused("loader-workers", program(sample, init, step="sets[0].data = 0  # !"), "# !")


UNUSED = """
class Pad:
    def __call__(self, target):
        return pad(target)
def pad(target):
    target["size"] = 3  # !
    return target
"""


@pytest.mark.parametrize(
    ("named", "edited"),
    [
        ("", True),
        ("wanted = getattr(torch, 'relu')", True),
        ("pad({})", False),
        ("PADS = {'Pad': Pad}", False),
        ("by_name = globals()", False),
        ("getattr(h, name)(data)", False),
        ("module = sys.modules[__name__]", False),
        ("module = importlib.import_module(name)", False),
        ("[each() for each in Hook.__subclasses__()]", False),
    ],
)
def test_what_nothing_in_the_program_names_changes_nothing(named: str, edited: bool) -> None:
    text = program("return self.paths[i]['size'], i", top=UNUSED, step=named or "pass")
    if edited:
        assert isinstance(asked("loader-workers", text), Edits)
    else:
        refused("loader-workers", text, "# !")


@pytest.mark.parametrize("head", ["class Hook(Base):", "@register\nclass Hook:"])
def test_a_class_that_another_may_keep_is_not_unused(head: str) -> None:
    top = f"class Base:\n    pass\n{head}\n    def __call__(self, target):\n        target['size'] = 3  # !\n"
    refused("loader-workers", program("return self.paths[i]['size'], i", top=top), "# !")


@pytest.mark.parametrize(("text", "mark"), BETWEEN[1:])
def test_what_changes_between_epochs_is_not_seen_by_workers_that_live_on(text: str, mark: str) -> None:
    refused("persistent-workers", text, mark)


LIVING = ", num_workers=count, persistent_workers=count > 0"


def counted(text: str) -> str:
    return text.replace("    loader =", "    count = 0\n    loader =")


def test_workers_that_would_live_on_by_the_programs_own_word_change_the_training() -> None:
    answer = asked("loader-workers", counted(program(options=LIVING)))
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING
    again = counted(program(options=LIVING)).replace(
        "for epoch in range(3):\n", "for epoch in range(3):\n        loader = LOADER\n"
    )
    built = again[again.index("DataLoader(data") : again.index("\n    model")]
    anew = asked("loader-workers", again.replace(f"    loader = {built}\n", "").replace("LOADER", built))
    assert isinstance(anew, Edits)
    assert anew.gate is None


@pytest.mark.parametrize(("text", "mark"), [(NOISY, "data.strength = epoch  # !")])
def test_workers_that_would_live_on_do_not_see_what_changes_between_epochs(text: str, mark: str) -> None:
    refused("loader-workers", counted(program(text, "self.strength = 0.0", options=LIVING, epoch=mark)), "# !")


def test_workers_that_would_live_on_serve_no_second_pass_meanwhile() -> None:
    text = counted(program(options=LIVING, step="sum(len(rows) for rows in loader)  # !"))
    refused("loader-workers", text, "# !")


SORTING = """
model = nn.Linear(1, 1)
pair = model(torch.ones(1, 1))
def collate(batch):
    batch.sort(key=lambda pair: len(pair[0]), reverse=True)
    return torch.nn.utils.rnn.pad_sequence([words for words, _ in batch]), len(batch)
"""


@pytest.mark.parametrize("change", ["", "batch[0][0].mul_(2)", "for words, _ in batch:\n        words.clamp_(0)"])
def test_a_collate_function_may_sort_the_list_that_it_is_given_and_change_no_sample(change: str) -> None:
    top = SORTING.replace("    return", f"    {change}\n    return") if change else SORTING
    init, sample = "self.items = [(torch.ones(2), 1)]", "return self.items[i]"
    text = program(sample, init, top=top, options=", collate_fn=collate")
    if change:
        refused("loader-workers", text, sample)
    else:
        assert isinstance(asked("loader-workers", text), Edits)


def test_the_parameter_of_a_lambda_is_no_variable_that_the_program_changes() -> None:
    scaled = "def scaled(path):\n    path.mul_(2)\n    return path\n"
    of_paths = "Images(list(filter(lambda path: path.endswith('.pt'), paths)))"
    assert isinstance(asked("loader-workers", program(dataset=of_paths, top=scaled, step="scaled(y)")), Edits)
    by_default = "Images(list(filter(lambda path, kept=paths: path in kept, paths)))"
    refused("loader-workers", program(dataset=by_default, step="paths.pop()  # !"), "# !")


def test_the_name_of_a_module_calls_no_function_before_the_loader_is_built() -> None:
    held = "batches = iter(loader)\nnext(batches)"  # nothing says then when batches come
    text = program("return self.paths.size * i, i", dataset="Images(ARGS)", top="from sizes import SIZES\n", end=held)
    main = 'if __name__ == "__main__":\n'
    text = text.replace(main, f"import options\n\nARGS = options.parse()\n{main}    ARGS.size = 8  # set once\n")
    named = "SIZES = [1]\n\ndef sizes():\n    return SIZES\n"
    assert isinstance(asked("loader-workers", text, sizes=named), Edits)
    refused("loader-workers", text.replace("    ARGS.size", "    main()\n    ARGS.size"), "# set", sizes=named)
