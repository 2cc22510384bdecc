"""Gives the data loader worker processes.

What it changes
    Gives the training `DataLoader` worker processes: `num_workers` where the program sets it (in the call, in the
    dictionary of options that the call takes, in a constant, an argparse or dataclass default, a config file), and
    `pin_memory=True` where batches go to a CUDA device. The number is chosen by trying: few first, no more than there
    are cores. For the loader of Hugging Face's Trainer it goes into `TrainingArguments`, or where those come from.
    Where another library builds the loader and nobody chose a number, a small file beside the script,
    `diagnose_fixes.py`, gives `DataLoader` another default.

Why it helps
    Without workers the training process reads and transforms each sample itself, between two steps, while the
    device waits. Workers do it at the same time. Pinned batches reach the device without a second copy on the host.

How many
    A step waits for its batch for a share w of its time. Without workers that is how long one batch takes to make, so
    w / (1 - w) workers make one in each step that no longer waits; n workers that are too slow are at work all the
    time, so n / (1 - w) would do. A batch takes a worker longer than the training thread, since it is handed over and
    cores and caches are shared: the first number tried is the power of two that is MARGIN (2) times as many or more.
    Between that and larger ones the choice is made by trying. There are no more than the cores of this host for each
    of its ranks, less one for its training where there are more than four. Where the launcher of a job does not say how
    many of its ranks are on this host, all are taken to be, and the fix says so.

Fix safety
    Bitwise, where a sample depends on its index alone: the order of samples and the random numbers of the training
    process stay as they were. Where the program's source or the run shows that making a sample draws random numbers
    (`random`, `numpy.random`, torch, transforms such as `RandomCrop`) it changes the training: torch seeds those
    generators anew in each worker, and samples are drawn as before, but by other numbers. Left alone: samples that draw
    from a generator that the program keeps, or that a `worker_init_fn` seeds alike in all workers, since all would draw
    the same; an `IterableDataset` that does not ask which worker it is in, which would yield every sample once per
    worker; a dataset that moves data to a CUDA device, which cannot run in a forked process; a loader of which the
    program reads `num_workers`; a program with a handler of a signal that prints or saves, as Ctrl-C reaches workers
    too. Workers are started anew in each epoch; `persistent-workers` keeps them, which changes
    the order of samples, and so does a program's own `persistent_workers=workers > 0`: it then changes the training.
    A worker computes with one thread. Where `interpolate` resizes samples, or `torch.fft` transforms them, the last
    bits may differ from those that several threads give: the samples are then equal up to rounding. So may those of
    sums over tens of thousands of elements (`x.mean()`), where the checks refuse the edit.
    Each worker holds batches of its own: `num_workers × prefetch_factor` of them in host memory. Where processes are
    spawned and not forked, the script needs its main guard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Facts,
    Fixer,
    Gate,
    Request,
    Scalar,
    Site,
    example_request,
    lines_with,
    word_diffs,
)
from diagnose.source.batches.loader import Loader
from diagnose.source.batches.loaders import LoadersFound
from diagnose.source.batches.shared_workers import loaders_reached
from diagnose.source.rewrite.shim import add_to_shim, import_for_effect
from diagnose.source.samples.dataset_rng import Draw
from diagnose.source.tree.edits import Splice, parse, splice

MARGIN = 2.0
"""The number of workers to add, as a multiple of those that would suffice if each were as fast as the training
thread alone."""
_CORES_ASSUMED = 4  # where the run did not record how many there are; chosen, not measured
_FEW_CORES = 4  # with more, one is left to the training thread; chosen, not measured
_SHIM = '''
_plain_loader = torch.utils.data.DataLoader.__init__


@functools.wraps(_plain_loader)
def _loader_with_workers(self, dataset, *args, **options):
    """A DataLoader for which nobody chose a number of workers has {0}."""
    chosen = len(args) > 4 or "num_workers" in options
    if not chosen and not isinstance(dataset, torch.utils.data.IterableDataset):
        options["num_workers"] = {0}
    _plain_loader(self, dataset, *args, **options)


torch.utils.data.DataLoader.__init__ = _loader_with_workers
'''


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Numbers of workers to try, powers of two and the most there may be: from those that suffice by measurement on."""
    present = max((loader.workers for loader in request.loaders().loaders), default=0)
    if request.finding.rule == "cpu-contention":
        return [{"num_workers": count} for count in dict.fromkeys((present // 2, present // 4)) if count] or [{}]
    most = _most(request.facts)
    counts = sorted({*(1 << power for power in range(8) if 1 << power <= most), min(most, 128)})
    counts = [count for count in counts if count > present]
    if request.finding.rule == "input-bound":
        waits = request.finding.share
        at_work = present or waits
        counts = [count for count in counts if count * (1 - waits) >= MARGIN * at_work] or counts[-1:]
    return [{"num_workers": count} for count in counts] or [{}]


def _most(facts: Facts) -> int:
    """Workers that a rank of this host has cores for, beside its training; where cores are few, that waits for them."""
    cores = (facts.cpu_count or _CORES_ASSUMED) // max(1, facts.local_world_size or facts.world_size or 1)
    return cores - 1 if cores > _FEW_CORES else max(1, cores)


def _share_note(facts: Facts) -> str:
    """Return the words for the ranks with which the cores were divided, where that is not known; "" where it is."""
    if facts.local_world_size is not None or (facts.world_size or 1) == 1:
        return ""
    return f"; cores are shared out among all {facts.world_size} ranks, as nothing says how many are on this host"


def rewrite(request: Request) -> Answer:
    """Set the workers of the loaders that feed the training loop."""
    found = request.loaders()
    wanted = request.setting.get("num_workers", settings(request)[0].get("num_workers"))
    contended = request.finding.rule == "cpu-contention"
    if not isinstance(wanted, int) and contended:
        return None
    if (found.loaders or found.foreign) and not isinstance(wanted, int):
        return Advice(
            f"There are as many workers as cores already{_share_note(request.facts)}: what they do for a sample has to "
            "become cheaper. Decode once and store the result, or keep it in memory where it fits."
        )
    edits: list[tuple[str, Sequence[Splice]]] = []
    reasons = [
        f"{site.file}:{site.line} builds a DataLoader in code that is not yours to edit: pass num_workers on from "
        "where you call it."
        for site in found.foreign
    ]
    draws: list[Draw] = []
    kept: list[str] = []
    for loader in found.loaders:
        if contended and isinstance(wanted, int) and loader.workers <= wanted:
            continue  # where cores are short, no loader gets more
        reason = loader.why_no_workers() or _all_draw_the_same(loader, wanted)
        if loader.keeps_workers and loader.workers == 0:
            reason = reason or loader.why_none_live_on()
        more, why_not = _edits(request, loader, wanted) if reason is None and isinstance(wanted, int) else ([], [])
        beside = list(loaders_reached(loader, more, request.edited))
        reason = reason or _why_not_beside(beside, wanted)
        if reason:
            reasons.append(f"{loader.where} {reason}")
        else:
            edits += more
            reasons += why_not
            drawn = (other.draw() for other in (loader, *beside)) if more else ()
            draws += [each for each in drawn if each is not None]
            kept += [loader.where] if loader.keeps_workers and loader.workers == 0 and more else []
    files = request.edited(edits)
    if not files and found.foreign and isinstance(wanted, int):
        return _from_outside(request, found, wanted) or Advice(" ".join(reasons))
    if files:
        summary = f"load samples in {wanted} worker process{'es' if wanted != 1 else ''}"
        summary += _guard_note(request) + _share_note(request.facts)
        if not draws and any(loader.is_stream for loader in found.loaders):
            return Edits(files, summary, Gate.TRAINING, "workers yield their parts of the stream in turn")
        if not draws and kept:
            return Edits(
                files, summary, Gate.TRAINING, f"workers of {kept[0]} live on, so that epochs draw other orders"
            )
        split = next((code for loader in found.loaders if (code := loader.split_over_threads)), None)
        if not draws and split is not None:
            return Edits(files, summary, Gate.ROUNDING, f"a worker computes `{split}` with one thread")
        if not draws:
            return Edits(files, summary)
        return Edits(files, summary, Gate.TRAINING, _because(draws[0].code))
    if not reasons and not found.loaders and request.finding.rule == "input-bound":
        reasons += list(_without_loader(request))
    return Advice(" ".join(reasons)) if reasons else None


def _because(code: str) -> str:
    return f"samples draw random numbers (`{code}`), others in workers"


def _all_draw_the_same(loader: Loader, wanted: Scalar) -> str | None:
    """Why more workers would have less variety in their samples; None where they would not."""
    more = isinstance(wanted, int) and wanted > loader.workers
    draw = loader.draw() if more else None
    if draw is None or not draw.copied:
        return None
    return (
        f"feeds samples that draw from a generator of which each worker would have a copy in the same state "
        f"({draw.words}): all would draw the same, and that in each epoch. Seed it from torch.initial_seed() in a "
        "worker_init_fn first."
    )


def _why_not_beside(others: Sequence[Loader], wanted: Scalar) -> str | None:
    """Why loaders that would get workers as well may have none; None where all may."""
    for other in others:
        reason = other.why_no_workers() or _all_draw_the_same(other, wanted)
        if other.keeps_workers and other.workers == 0:
            reason = reason or other.why_none_live_on()
        if reason is not None:
            return f"takes its number of workers from where {other.where} does, which {reason}"
    return None


def _without_loader(request: Request) -> Iterator[str]:
    """Yield advice where a function of the program's own makes each batch."""
    place = next((place for place in request.finding.where if place.file in request.sources), None)
    if place is not None:
        made_in = f"`{place.function}`" if place.function not in (None, "<module>") else "its own code"
        yield (
            f"{place.file}:{place.line} makes each batch in the training thread, in {made_in}, without a DataLoader. "
            "Let a thread make the next one while the device computes on this one (threading.Thread and "
            "queue.Queue(maxsize=2)), or keep all samples on the device and pick them there. No edit is made: a "
            "thread that draws random numbers beside training would draw others."
        )


def _edits(request: Request, loader: Loader, wanted: int) -> tuple[list[tuple[str, Sequence[Splice]]], list[str]]:
    options = loader.options
    if (reason := options.place("num_workers", wanted).reason) is not None:
        return [], [reason]
    new: dict[str, Scalar] = {"num_workers": wanted}
    pageable = request.facts.device_name is not None and not options.value("pin_memory")
    if pageable and loader.why_not_read("pin_memory") is None:
        new["pin_memory"] = True
    placed = options.place_all(new)
    return [edit for each in placed for edit in each.edits.items()], [each.reason for each in placed if each.reason]


def _from_outside(request: Request, found: LoadersFound, wanted: int) -> Edits | None:
    """Change what a library's loader has by default, from a file beside the script; None where that cannot be done."""
    source = parse(request.sources.get(request.entry or "", ""))
    iterable = any(site.arguments.get("iterable") is not False for site in found.foreign)
    unset = all(site.arguments.get("num_workers") in (0, None) for site in found.foreign)
    if source is None or request.home is None or request.entry is None or iterable or not unset:
        return None
    shim = add_to_shim(request.home, request.sources, ["import functools", "import torch"], _SHIM.format(wanted))
    script = splice(source.text, import_for_effect(source, "gives the loaders of libraries worker processes"))
    drew = next(iter(found.drew), None)
    return Edits(
        {request.entry: script, shim.path: shim.text},
        f"load samples in {wanted} worker processes where a library builds the loader, by a new file diagnose_fixes.py"
        + _share_note(request.facts),
        Gate.TRAINING if drew is not None else None,
        _because(str(drew.arguments.get("generators"))) if drew is not None else "",
    )


def _guard_note(request: Request) -> str:
    text = request.sources.get(request.entry or "", "__name__")
    return "" if "__name__" in text else "; the script has no main guard, which processes that are spawned would need"


def _recorded(text: str, cuda: bool = False, workers: int = 0, **arguments: Scalar) -> Request:
    line = lines_with(text, "DataLoader(")[0]
    workers = 2 if "2" in text else workers  # what a run of the example's outcome records
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": workers, **arguments})
    facts = Facts(cpu_count=4, device_name="NVIDIA H200" if cuda else None)
    return example_request("input-bound", text, sites=[site], facts=facts, setting={"num_workers": 2})


def _contended(text: str) -> Request:
    workers = 4 if "4" in text else 8  # what a run of the example's outcome records
    site = Site("DataLoader", "train.py", 2, arguments={"num_workers": workers})
    return example_request("cpu-contention", text, sites=[site], setting={"num_workers": 4})


_IMPORT = "from torch.utils.data import DataLoader\n"
_ARGPARSE = 'parser.add_argument("--num-workers", type=int, default={})\n'

FIXER = Fixer(
    name="loader-workers",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.input",
    changes_loading=True,
    settings=settings,
    order=30,
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "loader = DataLoader(data, batch_size=8{+, num_workers=2+})  # small\n",
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(\n    data,\n    num_workers=0,  # for now\n    batch_size=8\n)\n",
            after=_IMPORT + "loader = DataLoader(\n    data,\n    num_workers=2,  # for now\n    batch_size=8,\n"
            "    pin_memory=True\n)\n",
            request=lambda text: _recorded(text, cuda=True),
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(StoredImages(2048), batch_size=args.batch, shuffle=True)  # small\n",
            after=_IMPORT + "loader = DataLoader(\n    StoredImages(2048), batch_size=args.batch, shuffle=True, "
            "num_workers=2, pin_memory=True\n)  # small\n",
            request=lambda text: _recorded(text, cuda=True),
        ),
        *word_diffs(
            _recorded,
            _IMPORT + "loader = DataLoader(data, 8, True, None, None, {-0-}{+2+})\n",
        ),
        Example(
            before=_IMPORT + "WORKERS = 1\nloader = DataLoader(data, num_workers=WORKERS)\n",
            after=_IMPORT + "WORKERS = 2\nloader = DataLoader(data, num_workers=WORKERS)\n",
            request=lambda text: _recorded(text, workers=1),
        ),
        Example(
            before=_IMPORT + _ARGPARSE.format(0) + "loader = DataLoader(data, num_workers=args.num_workers)\n",
            after=_IMPORT + _ARGPARSE.format(2) + "loader = DataLoader(data, num_workers=args.num_workers)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + _ARGPARSE.format(0) + "loader = DataLoader(data, num_workers=args.num_workers)\n",
            after=_IMPORT + _ARGPARSE.format(0) + "loader = DataLoader(data, num_workers=max(args.num_workers, 2))\n",
            request=lambda text: _recorded(text, workers=1),
        ),
        *word_diffs(
            _recorded,
            (
                _IMPORT + "class Config:\n    workers: int = {-0-}{+2+}\n\n"
                "loader = DataLoader(data, num_workers=cfg.workers)\n"
            ),
            _IMPORT + 'loader = DataLoader(data, **{+{**+}options{+, "num_workers": 2}+})\n',
        ),
        Example(
            before=_IMPORT + "kwargs = {'batch_size': 8}\nif cuda:\n    more = {'num_workers': 1,\n"
            "            'pin_memory': True}\n    kwargs.update(more)\nloader = DataLoader(data, **kwargs)\n",
            after=_IMPORT + "kwargs = {'batch_size': 8}\nif cuda:\n    more = {'num_workers': 2,\n"
            "            'pin_memory': True}\n    kwargs.update(more)\nloader = DataLoader(data, **kwargs)\n",
            request=lambda text: _recorded(text, cuda=True, workers=1),
        ),
        *word_diffs(
            _contended,
            _IMPORT + "loader = DataLoader(data, num_workers={+min(+}os.cpu_count(){+, 4)+})\n",
        ),
        *word_diffs(
            _recorded,
            _IMPORT + "class Lines(IterableDataset):\n    pass\n\nloader = DataLoader(Lines())\n",
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data)\n",
            after=None,
            request=lambda text: _recorded(text, iterable=True),
        ),
        Example(
            before=_IMPORT + "class Images:\n    def __getitem__(self, i):\n        return x.cuda()\n\n"
            "data = Images()\nloader = DataLoader(data)\n",
            after=None,
            request=_recorded,
        ),
        Example(
            before="loader = make_loader(DataLoader(data) if False else None)\n",
            after=None,
            request=lambda text: example_request(
                "input-bound", text, sites=[Site("DataLoader", "/lib/loaders.py", 7, owned=False)]
            ),
        ),
    ),
)
