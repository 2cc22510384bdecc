"""Makes every sample of a small dataset once, and keeps all in memory.

What it changes
    The dataset that the training `DataLoader` takes becomes `decoded(dataset)`, from a small file `diagnose_fixes.py`
    that the fix adds beside the script. Before training it reads and transforms each sample once into one tensor a
    field; the loader then takes rows of those.

Why it helps
    Reading, decoding and transforming a small image takes far longer than computing with it, and is the same work in
    every epoch. Worker processes only spread it; a row of a tensor costs next to nothing.

Fix safety
    Bitwise: `decoded` makes 64 samples twice, and hands the dataset on as it is where they differ, where making any
    draws random numbers, seeds torch or changes what the dataset holds, where samples are no tensors and numbers of one
    shape on the host, or where all would take more than a quarter of the memory that is left or more than half a minute
    to make. Loaders that share a dataset share what is kept. Forked workers share the tensors; where workers are
    spawned nothing is kept. Left alone, with advice: transforms that draw random numbers, a collate function of the
    program's own, datasets that the program changes between epochs, that change themselves, that yield a stream, or
    that use the device, and loaders that are built again and again or gone through once. The time before training is
    paid once in each start of the program.
"""

from __future__ import annotations

import ast

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    Request,
    Scalar,
    Site,
    example_request,
    lines_with,
)
from diagnose.source.batches.loader import Loader
from diagnose.source.rewrite.shim import add_to_shim, import_from_shim
from diagnose.source.samples.changing_samples import changing_samples
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import Splice, call_name, parse, splice
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.outline import called_name

_IMPORTS = ("import numbers", "import os", "import random", "import sys", "import time", "import torch")
_CODE = '''
class DecodedSamples(torch.utils.data.Dataset):
    """The samples of a dataset, one tensor a field; all else is asked of the dataset."""

    def __init__(self, dataset, columns, kind):
        self._decoded_from, self._columns, self._kind = dataset, columns, kind

    def __len__(self):
        return len(self._decoded_from)

    def __getitem__(self, index):
        if not isinstance(index, numbers.Integral) or not 0 <= index < len(self._columns[0]):
            return self._decoded_from[index]
        fields = [column[index].clone() for column in self._columns]  # whoever takes a sample may change it
        if self._kind is torch.Tensor:
            return fields[0]
        return self._kind(fields) if self._kind in (list, tuple) else dict(zip(self._kind, fields))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._decoded_from, name)

    def __repr__(self):
        return repr(self._decoded_from)


_made = []  # each dataset with what it became, for all loaders that share it


def decoded(dataset, seconds=30.0, share=0.25):
    """The dataset with each sample made once and kept in memory.

    The dataset itself where samples are drawn anew each time, seed torch or differ in shape, where making them changes
    it, or where all of them would take more than a share of the free memory, or more seconds than that.
    """
    for known, its in _made:
        if known is dataset:
            return its
    before = _random_states()
    held = [(each, dict(vars(each))) for each in _datasets_in(dataset)]
    seed, torch.manual_seed = torch.manual_seed, _no_seed  # which would seed the generators of all devices too
    try:
        kept = _decoded(dataset, seconds, share)
    except Exception:
        kept = None  # words, pictures, ragged arrays, files that are not there: the program meets them where it did
    finally:
        torch.manual_seed = seed
    changed = _set_back(held)
    drawn = _set_random_states(before)
    if kept is None or changed or drawn:
        return dataset
    _made.append((dataset, kept))
    return kept


def _no_seed(seed):
    raise RuntimeError("a sample seeds torch")


def _decoded(dataset, seconds, share):
    own = [each for each in _datasets_in(dataset) if type(each) is not torch.utils.data.Subset]
    if any(hasattr(each, "__getitems__") for each in own):
        return None  # it makes the samples of a batch in a way of its own
    methods = torch.multiprocessing.get_all_start_methods()  # the usual one first
    if (torch.multiprocessing.get_start_method(allow_none=True) or methods[0]) != "fork":
        return None
    began, count = time.perf_counter(), len(dataset)
    for done, index in enumerate(sorted({count * part // 64 for part in range(64)}), 1):
        (kind, first), (other_kind, second) = _fields(dataset[index]), _fields(dataset[index])
        if not first or kind != other_kind or not all(map(torch.equal, first, second)):
            return None
        if sum(field.nbytes for field in first) * count > share * _free_bytes():
            return None
        if done >= 3 and (time.perf_counter() - began) / (2 * done) * count > seconds:
            return None
    shapes = [(each.shape, each.dtype) for each in first]
    columns = [torch.empty((count, *field.shape), dtype=field.dtype) for field in first]
    for index in range(count):
        its_kind, fields = _fields(dataset[index])
        if its_kind != kind or [(each.shape, each.dtype) for each in fields] != shapes:
            return None
        for column, field in zip(columns, fields):
            column[index] = field
        if time.perf_counter() - began > 2 * seconds:
            return None
    return DecodedSamples(dataset, columns, kind)


def _fields(sample):
    """What a sample is, with the names of its fields where it has names, and its fields as tensors."""
    if isinstance(sample, torch.Tensor):
        return torch.Tensor, [_field(sample)]
    if type(sample) is dict:
        return list(sample), [_field(value) for value in sample.values()]
    if type(sample) in (list, tuple):
        return type(sample), [_field(value) for value in sample]
    raise TypeError(type(sample))


def _field(value):
    """As a loader would make it one part of a batch."""
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64)
    if type(value) in (int, bool) or type(value).__module__ == "numpy":
        return torch.as_tensor(value)
    if type(value) is not torch.Tensor and type(torch.stack([value])) is not torch.Tensor:
        raise TypeError(type(value))
    if value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
        raise TypeError(value)
    return value


def _free_bytes():
    """What each process of this job may have of the host's memory, and of what its container is allowed."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            free = min(free, int(limit.read()) - int(used.read()))
    except (OSError, ValueError):
        pass  # there is no such limit
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    if not ranks and torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
    return free // max(ranks, 1)


def _datasets_in(dataset):
    """The dataset, and those that it takes samples of."""
    found = [dataset] if hasattr(dataset, "__dict__") else []
    for each in found:
        inner = [vars(each).get("dataset")]
        several = vars(each).get("datasets")
        inner += several if isinstance(several, (list, tuple)) else []
        found += [one for one in inner if hasattr(one, "__dict__") and not any(one is known for known in found)]
    return found


def _set_back(held):
    """Undo what datasets hold anew: a count, a file that no worker may share; whether there was any."""
    changed = False
    for each, before in held:
        now = vars(each)
        if now.keys() != before.keys() or any(now[name] is not value for name, value in before.items()):
            changed = True
            now.clear()
            now.update(before)
    return changed


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
        drawn = drawn or now[2][2:] != states[2][2:] or bytes(now[2][1]) != bytes(states[2][1])
        sys.modules["numpy"].random.set_state(states[2])
    return drawn
'''


def rewrite(request: Request) -> Answer:
    """Wrap the dataset of every loader that feeds training."""
    edits: dict[str, list[Splice]] = {}
    reasons: list[str] = []
    for loader in request.loaders().loaders:
        given = None if loader.options.names else argument(loader.options.node, "dataset", 0)
        if given is None or _is_decoded(given.value) or _is_in_memory(loader):
            continue
        reason = _why_not(request, loader, given.value)
        if reason is not None:
            reasons.append(f"{loader.where} {reason}")
            continue
        start, end = loader.options.source.wide_span(given.value)
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


def _is_in_memory(loader: Loader) -> bool:
    """Whether the run saw it feed tensors that are in memory already."""
    return loader.site is not None and loader.site.arguments.get("dataset") == "TensorDataset"


def _why_not(request: Request, loader: Loader, given: cst.BaseExpression) -> str | None:
    """Why a loader's samples are not kept; None where they can be."""
    recorded = loader.site.arguments if loader.site is not None else {}
    source = loader.options.source
    collate = recorded.get("collate_fn", "default_collate")
    if recorded.get("iterable") is True:
        return "feeds a dataset that yields a stream: store its samples decoded, and read those."
    if collate != "default_collate" or loader.options.given("collate_fn") is not None:
        return "has a collate function of its own: keep what it makes in memory by hand, where it fits."
    if (use := loader.device_use) is not None:
        return f"feeds a dataset that {use}. Make its samples on the host first."
    if loader.made_again:
        return "is built again and again: build it once, or keep the samples decoded by hand."
    if loader.for_one_pass and not any(loader.options.given(name) for name in ("sampler", "batch_sampler")):
        return "is gone through once, where it is built: each sample is made once as it is."
    named = any(name.value == "decoded" for name in source.every(cst.Name))
    if named and import_from_shim(source, ["decoded"]):
        return "stands beside something else that is called decoded: keep the samples in memory by hand."
    named_type = _asks_for_its_type(request)
    if named_type is not None:
        return f"feeds a dataset whose type the program asks for: {named_type}. Kept samples are of another."
    changing = changing_samples(request.sources, source, given, recorded.get("dataset"))
    draw = loader.draw() if changing is None else None
    if draw is not None and draw.copied:
        at = f"{draw.path}:{draw.line}"
        return f"feeds samples that are drawn from a generator which the program keeps: {at}. Store them before that."
    return changing or loader.why_none_kept()


def _asks_for_its_type(request: Request) -> str | None:
    """Return where the program asks what its dataset is: by `type`, `isinstance` or `loader.dataset.__class__`."""
    for path, source in files_with(request.sources, "dataset"):
        classes = (each for each in source.outline.every(ast.Attribute) if each.attr == "__class__")
        asked = [each.lineno for each in classes if _is_of_dataset(each.value)]
        for call in source.outline.every(ast.Call):
            given = (*call.args, *(each.value for each in call.keywords))
            if called_name(call) in {"type", "isinstance"} and any(map(_is_of_dataset, given)):
                asked.append(call.lineno)
        if asked:
            return f"{path}:{min(asked)}"
    return None


def _is_of_dataset(node: ast.expr) -> bool:
    """Whether an expression is `x.dataset` or `dataset.x`."""
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr == "dataset" or (isinstance(node.value, ast.Name) and node.value.id == "dataset")


def _recorded(text: str, **arguments: Scalar) -> Request:
    line = lines_with(text, "DataLoader(")[0]
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
    changes_loading=True,
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
