"""Makes every sample of a small dataset once, and keeps all in memory.

What it changes
    The dataset that the training `DataLoader` takes becomes `decoded(dataset)`, from a small file `diagnose_fixes.py`
    that the fix adds beside the script. Before training it reads and transforms each sample once into one tensor a
    field; the loader then takes rows of those.

Why it helps
    Reading, decoding and transforming a small image takes far longer than computing with it, and is the same work in
    every epoch. Worker processes only spread it; a row of a tensor costs next to nothing.

Fix safety
    Bitwise: `decoded` looks at some samples twice, and hands the dataset on as it is where they differ, where making
    them draws random numbers, where they are of several shapes, or where all would take more than a quarter of the
    memory that is left or more than half a minute to make. Forked workers share the tensors; processes that are spawned
    get a copy each. Left alone, with advice: transforms that draw random numbers, a collate function of the program's
    own, datasets that the program changes between epochs, that yield a stream, or that use the device. The time before
    training is paid once in each start of the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    Loader,
    Request,
    Scalar,
    Site,
    Source,
    Splice,
    add_to_shim,
    binding_of,
    call_name,
    example_request,
    import_from_shim,
    parse,
    splice,
)

_IMPORTS = ("import os", "import random", "import sys", "import time", "import torch")
_CODE = '''
class DecodedSamples(torch.utils.data.Dataset):
    """The samples of a dataset, one tensor a field; all else is asked of the dataset."""

    def __init__(self, dataset, columns, made_of):
        self.dataset, self.columns, self.made_of = dataset, columns, made_of

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.made_of([column[index] for column in self.columns])

    def __getattr__(self, name):
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def decoded(dataset, seconds=30.0, share=0.25):
    """The dataset with each sample made once and kept in memory.

    The dataset itself where samples are drawn anew each time or differ in shape, or where all of them would take more
    than a share of the free memory, or more seconds than that.
    """
    probed = (0, len(dataset) // 2, len(dataset) - 1) if len(dataset) else ()
    before = _random_states()
    began = time.perf_counter()
    try:
        twice = [(_fields(dataset[index])[0], _fields(dataset[index])[0]) for index in probed]
    except (TypeError, ValueError, RuntimeError):
        twice = []  # strings, pictures, ragged arrays: no loader makes tensors of them by itself
    taken = (time.perf_counter() - began) / 6
    drawn = _set_random_states(before)
    if drawn or not twice or not twice[0][0] or not all(_equal(*pair) for pair in twice):
        return dataset
    if sum(field.nbytes for field in twice[0][0]) * len(dataset) > share * _free_bytes():
        return dataset
    if taken * len(dataset) > seconds:
        return dataset
    columns = [torch.empty((len(dataset), *field.shape), dtype=field.dtype) for field in twice[0][0]]
    for index in range(len(dataset)):
        fields, made_of = _fields(dataset[index])
        if [(each.shape, each.dtype) for each in fields] != [(each.shape[1:], each.dtype) for each in columns]:
            return dataset
        for column, field in zip(columns, fields):
            column[index] = field
    return DecodedSamples(dataset, columns, made_of)


def _fields(sample):
    """The tensors that a sample is made of, and what makes it of them; none where it is of another kind."""
    if isinstance(sample, torch.Tensor):
        return [sample], _Only()
    if type(sample) is dict:
        return [_tensor(value) for value in sample.values()], _Named(list(sample))
    if type(sample) in (list, tuple):
        return [_tensor(value) for value in sample], type(sample)
    return [], None


class _Only:
    def __call__(self, fields):
        return fields[0]


class _Named:
    def __init__(self, names):
        self.names = names

    def __call__(self, fields):
        return dict(zip(self.names, fields))


def _tensor(value):
    """As a loader would make it a part of a batch."""
    return torch.tensor(value, dtype=torch.float64) if type(value) is float else torch.as_tensor(value)


def _equal(one, other):
    return len(one) == len(other) and all(torch.equal(left, right) for left, right in zip(one, other))


def _free_bytes():
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _random_states():
    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None


def _set_random_states(states):
    """Go back to these; whether random numbers were drawn since."""
    now = _random_states()
    drawn = now[0] != states[0] or not torch.equal(now[1], states[1])
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    if states[2] is not None:
        drawn = drawn or now[2][2] != states[2][2] or bytes(now[2][1]) != bytes(states[2][1])
        sys.modules["numpy"].random.set_state(states[2])
    return drawn
'''
_DRAWS = re.compile(
    r"\bRandom[A-Z]\w*\(|Jitter\(|\w*Augment\w*\(|AugMix\(|MixUp\(|CutMix\(|\brandom\.(?!seed)\w+\(|"
    r"\btorch\.(?:rand|randn|randint|randperm|bernoulli|multinomial|normal)\((?![^\n]*generator)"
)
_CHANGES = re.compile(r"(?:dataset|data|ds|trainset|train_set)\w*\.(?:set_epoch\(|(?!self)\w+\s*=[^=])")
_DEEPEST = 4


def rewrite(request: Request) -> Answer:
    """Wrap the dataset of every loader that feeds training."""
    edits: dict[str, list[Splice]] = {}
    reasons: list[str] = []
    for loader in request.loaders().loaders:
        given = None if loader.options.names else loader.options.given("dataset")
        if given is None or _is_decoded(given):
            continue
        reason = _why_not(request, loader, given)
        if reason is not None:
            reasons.append(f"{loader.where} {reason}")
            continue
        start, end = loader.options.source.wide_span(given)
        edits.setdefault(loader.options.path, []).extend([Splice(start, start, "decoded("), Splice(end, end, ")")])
    if not edits or request.home is None:
        return Advice(" ".join(reasons)) if reasons else None
    files = {}
    for path, splices in edits.items():
        source = parse(request.sources[path])
        if source is not None:
            files[path] = splice(source.text, [*splices, *import_from_shim(source, ["decoded"])])
    shim = add_to_shim(request.home, request.sources, _IMPORTS, _CODE)
    return Edits({**files, shim.path: shim.text}, "make each sample once and keep all, by a new file diagnose_fixes.py")


def _is_decoded(given: cst.BaseExpression) -> bool:
    return isinstance(given, cst.Call) and call_name(given) in {"decoded", "TensorDataset"}


def _why_not(request: Request, loader: Loader, given: cst.BaseExpression) -> str | None:
    recorded = loader.site.arguments if loader.site is not None else {}
    collate = recorded.get("collate_fn", "default_collate")
    if recorded.get("iterable") is True:
        return "feeds a dataset that yields a stream: store its samples decoded, and read those."
    if collate != "default_collate" or loader.options.given("collate_fn") is not None:
        return "has a collate function of its own: keep what it makes in memory by hand, where it fits."
    if recorded.get("dataset") == "TensorDataset":
        return "feeds tensors that are in memory already."
    if loader.uses_device:
        return "feeds a dataset that uses the device: make its samples on the host first."
    name = recorded.get("dataset")
    texts = list(_made_by(request, loader.options.source, given, name if isinstance(name, str) else None, _DEEPEST))
    texts += _code_of(request, name) if isinstance(name, str) else ()
    draws = next((found for text in texts if (found := _DRAWS.search(text))), None)
    if draws is not None:
        return f"feeds samples that are drawn anew each time (`{draws[0]}…`): store what comes before that decoded."
    lines = [line.split("#")[0].strip() for text in request.sources.values() for line in text.splitlines()]
    if any(_CHANGES.search(line) for line in lines if not line.startswith(("self.", "import ", "from "))):
        return "feeds a dataset that the program changes between epochs: store what does not change decoded."
    return None


def _made_by(request: Request, source: Source, node: cst.CSTNode, made: str | None, depth: int) -> Iterator[str]:
    """The texts of what makes an expression: itself, what its names are bound to, classes and functions it calls.

    `made` is the class that the run recorded: of several values of a name, those that call it count.
    """
    yield source.code(node)
    if depth == 0:
        return
    for name in source.every(cst.Name, node):
        bound = binding_of(source, name)
        values = [bound.value] if bound is not None and bound.value is not None else []
        if bound is None:
            values = [each.value for each in source.every(cst.Assign) if _binds(each, name.value)]
            values = [each for each in values if isinstance(each, cst.Call) and call_name(each) == made] or values
        for value in values:
            yield from _made_by(request, source, value, made, depth - 1)
        if not values:
            yield from _code_of(request, name.value)


def _binds(assign: cst.Assign, name: str) -> bool:
    return any(isinstance(each.target, cst.Name) and each.target.value == name for each in assign.targets)


def _code_of(request: Request, name: str) -> Iterator[str]:
    """The code of the program's own classes and functions of a name."""
    for text in request.sources.values():
        source = parse(text) if f"class {name}" in text or f"def {name}" in text else None
        if source is not None:
            defined: list[cst.ClassDef | cst.FunctionDef] = [
                *source.every(cst.ClassDef),
                *source.every(cst.FunctionDef),
            ]
            yield from (source.code(each) for each in defined if each.name.value == name)


def _recorded(text: str, **arguments: Scalar) -> Request:
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "DataLoader(" in line)
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": 2, "shuffle": True, **arguments})
    return example_request("input-bound", text, sites=[site])


_TOP = "from torch.utils.data import DataLoader\n"
_IMPORT = "\nfrom diagnose_fixes import decoded\n"
_DIGITS = (
    "tf = transforms.Compose([transforms.{}(28), transforms.ToTensor()])\ndigits = MNIST('../data', transform=tf)\n"
)
_LOADER = "loader = DataLoader({}, batch_size=64, **options)\n"

FIXER = Fixer(
    name="cache-decoded",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.input",
    order=30,
    after=("loader-workers",),
    examples=(
        Example(
            before=_TOP + _DIGITS.format("Resize") + _LOADER.format("digits"),
            after=_TOP + _IMPORT + _DIGITS.format("Resize") + _LOADER.format("decoded(digits)"),
            request=_recorded,
        ),
        Example(
            before=_TOP + _LOADER.format("MNIST('data',\n    transform=ToTensor())"),
            after=_TOP + _IMPORT + _LOADER.format("decoded(MNIST('data',\n    transform=ToTensor()))"),
            request=_recorded,
        ),
        Example(_TOP + _DIGITS.format("RandomCrop") + _LOADER.format("digits"), None, _recorded),
        Example(
            _TOP
            + "class Noisy:\n    def __getitem__(self, i):\n        return torch.randn(3)\n\n\nnoisy = Noisy()\n"
            + _LOADER.format("noisy"),
            None,
            _recorded,
        ),
        Example(_TOP + "loader = DataLoader(data, collate_fn=pad)\n", None, _recorded),
        Example(_TOP + "loader = DataLoader(lines)\n", None, lambda text: _recorded(text, iterable=True)),
        Example(_TOP + "loader = DataLoader(rows)\n", None, lambda text: _recorded(text, dataset="TensorDataset")),
        Example(
            _TOP + "loader = DataLoader(dataset)\nfor epoch in range(9):\n    dataset.set_epoch(epoch)\n",
            None,
            _recorded,
        ),
    ),
)
