"""Gives the data loader worker processes.

What it changes
    Gives the training `DataLoader` worker processes: `num_workers` where the program sets it (in the call, in a
    constant, in an argparse or dataclass default), `persistent_workers=True`, and `pin_memory=True` where batches
    go to a CUDA device. The number is chosen by trying: few first, no more than there are cores.

Why it helps
    Without workers the training process reads and transforms each sample itself, between two steps, while the
    device waits. Workers do it at the same time. Persistent ones are not started anew in each epoch; pinned batches
    reach the device without a second copy on the host.

Fix safety
    Bitwise, where a sample depends on its index alone: the order of samples and the random numbers of the training
    process stay as they were. Random augmentation draws from the generators of the workers instead, which the gate
    sees. Left alone: an `IterableDataset` that does not ask which worker it is in would yield every sample once per
    worker; a dataset that moves data to a CUDA device cannot run in a forked process. Workers are not kept where
    the program changes the dataset between epochs, since kept workers would not see it. Each worker holds batches
    of its own: `num_workers × prefetch_factor` of them in host memory. Where processes are spawned and not forked,
    the script needs its main guard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

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
    Source,
    Splice,
    argument,
    call_at,
    example_request,
    number,
    parse,
    replace,
    set_keywords,
    setting_of,
    splice,
)

_POSITIONS = {"num_workers": 5, "pin_memory": 7}
_CORES_ASSUMED = 4


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Numbers of workers to try: powers of two above the present one, up to the cores there are."""
    present = max((_workers(site) or 0 for site in _sites(request)), default=0)
    cores = request.facts.cpu_count or _CORES_ASSUMED
    counts = sorted({*(1 << power for power in range(8) if 1 << power <= cores), min(cores, 128)})
    return [{"num_workers": count} for count in counts if count > present] or [{}]


def rewrite(request: Request) -> Answer:
    """Set the workers of the loaders that feed the training loop."""
    sites = _sites(request)
    if not sites:
        return None
    wanted = request.setting.get("num_workers", settings(request)[0].get("num_workers"))
    if not isinstance(wanted, int):
        return Advice("There are as many workers as cores already: what they do for a sample has to become cheaper.")
    edits: dict[str, list[Splice]] = {}
    reasons: list[str] = []
    for site in sites:
        found = _edit(request, site, wanted)
        if isinstance(found, str):
            reasons.append(f"{site.file}:{site.line} {found}")
            continue
        for path, splices in found.items():
            edits[path] = edits.get(path, []) + [each for each in splices if each not in edits.get(path, [])]
    files = {path: splice(request.sources[path], splices) for path, splices in edits.items() if splices}
    if files:
        return Edits(
            files, f"load samples in {wanted} worker process{'es' if wanted > 1 else ''}{_guard_note(request)}"
        )
    return Advice(" ".join(reasons)) if reasons else None


def _sites(request: Request) -> list[Site]:
    """The loaders that feed training: those that shuffle, or all where none or every one does."""
    loaders = [site for site in request.sites if site.kind == "DataLoader"]
    named = {place.file: place.line for place in request.finding.where}
    at = [site for site in loaders if named.get(site.file) == site.line]
    return at or [site for site in loaders if site.arguments.get("shuffle") is True] or loaders


def _workers(site: Site) -> int | None:
    count = site.arguments.get("num_workers")
    return count if isinstance(count, int) else None


def _edit(request: Request, site: Site, wanted: int) -> dict[str, list[Splice]] | str:
    """Splices by file, or why there are none."""
    source = parse(request.sources[site.file]) if site.owned and site.file in request.sources else None
    call = call_at(source, site.line, {"DataLoader"}) if source is not None else None
    if source is None or call is None:
        return "builds a DataLoader in code that is not yours to edit: pass num_workers on from where you call it."
    reason = _why_not(request, site, source, call)
    if reason:
        return reason
    stars = [arg for arg in call.args if arg.star == "**"]
    if stars and argument(call, "num_workers") is None:
        return {site.file: _merged(request, source, call, stars[-1], wanted)}
    edits, positive = _number(request, site, source, call, wanted)
    keywords: dict[str, str] = {}
    if argument(call, "num_workers", _POSITIONS["num_workers"]) is None:
        keywords["num_workers"] = str(wanted)
    keywords |= _companions(request, source, call, positive)
    edits[site.file] = edits.get(site.file, []) + set_keywords(source, call, keywords, positions=_POSITIONS)
    return edits


def _why_not(request: Request, site: Site, source: Source, call: cst.Call) -> str | None:
    dataset = _dataset_class(request, site, source, call)
    code = dataset[0].code(dataset[1]) if dataset else ""
    iterable = site.arguments.get("iterable") is True or bool(
        dataset and any("IterableDataset" in dataset[0].code(base.value) for base in dataset[1].bases)
    )
    if iterable and "get_worker_info" not in code:
        return (
            "feeds an IterableDataset that does not ask torch.utils.data.get_worker_info() which part is its own: "
            "workers would each yield all samples. Split the samples in its __iter__ first."
        )
    if re.search(r"\.cuda\(|device\s*=\s*[\"']cuda|\.to\(\s*[\"']cuda", code):
        return "feeds a dataset that uses the CUDA device, which worker processes cannot: move data after loading."
    return None


def _dataset_class(request: Request, site: Site, source: Source, call: cst.Call) -> tuple[Source, cst.ClassDef] | None:
    """The class of the dataset, by the name that the run recorded or that the source shows."""
    name = site.arguments.get("dataset")
    given = argument(call, "dataset", 0)
    value = given.value if given else None
    if name is None and isinstance(value, cst.Name):
        assigned = [
            each.value for each in source.every(cst.Assign) if source.code(each.targets[0].target) == value.value
        ]
        value = assigned[-1] if assigned else None
    if name is None and isinstance(value, cst.Call):
        name = source.code(value.func).rpartition(".")[2]
    for text in request.sources.values():
        parsed = parse(text) if f"class {name}" in text else None
        for found in parsed.every(cst.ClassDef) if parsed else ():
            if found.name.value == name and parsed is not None:
                return parsed, found
    return None


def _number(
    request: Request, site: Site, source: Source, call: cst.Call, wanted: int
) -> tuple[dict[str, list[Splice]], str]:
    """The edits that set the number given in the call, and an expression that says whether it is positive."""
    given = argument(call, "num_workers", _POSITIONS["num_workers"])
    if given is None:
        return {}, "True"
    value = given.value
    setting = setting_of(value, site.file, source, request.sources, _workers(site))
    if setting is not None:
        edits = {setting.path: [setting.to(wanted)]} if setting.value != wanted else {}
        return edits, "True" if setting.fixed else f"{source.code(value)} > 0"
    if isinstance(value, cst.Call) and source.code(value.func) == "max" and number(value.args[-1].value) is not None:
        raised = value.args[-1].value
        return ({site.file: [replace(source, raised, str(wanted))]} if number(raised) != wanted else {}), "True"
    # It comes from outside (a command line, a file): what is asked for there still counts when it is more.
    return {site.file: [replace(source, value, f"max({source.code(value)}, {wanted})")]}, "True"


def _companions(request: Request, source: Source, call: cst.Call, positive: str) -> dict[str, str]:
    keywords: dict[str, str] = {}
    persistent = argument(call, "persistent_workers")
    absent = persistent is None or source.code(persistent.value) == "False"
    if absent and not _made_in_a_loop(source, call) and not _dataset_changes(request):
        keywords["persistent_workers"] = positive
    pinned = argument(call, "pin_memory", _POSITIONS["pin_memory"])
    if request.facts.device_name is not None and (pinned is None or source.code(pinned.value) == "False"):
        keywords["pin_memory"] = "True"
    return keywords


def _merged(request: Request, source: Source, call: cst.Call, star: cst.Arg, wanted: int) -> list[Splice]:
    """The call takes `**options`: put ours over them, whatever they are."""
    ours = {"num_workers": str(wanted), **_companions(request, source, call, "True")}
    if isinstance(star.value, cst.Dict) and '"num_workers"' in source.code(star.value):
        keys = [each for each in star.value.elements if isinstance(each, cst.DictElement)]
        there = next((each for each in keys if source.code(each.key) == '"num_workers"'), None)
        same = there is None or source.code(there.value) == str(wanted)
        return [] if same or there is None else [replace(source, there.value, str(wanted))]
    listed = ", ".join(f'"{name}": {code}' for name, code in ours.items())
    return [replace(source, star.value, f"{{**{source.code(star.value)}, {listed}}}")]


def _made_in_a_loop(source: Source, call: cst.Call) -> bool:
    for above in source.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.For | cst.While):
            return True
    return False


def _dataset_changes(request: Request) -> bool:
    """Whether the program tells its dataset about the epoch, or sets its attributes, once it is built."""
    changes = re.compile(r"(?:dataset|data|ds)\w*\.(?:set_epoch\(|(?!self)\w+\s*=[^=])")
    return any(changes.search(line) for text in request.sources.values() for line in _code_lines(text))


def _code_lines(text: str) -> list[str]:
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if not line.startswith(("self.", "import ", "from "))]


def _guard_note(request: Request) -> str:
    text = request.sources.get(request.entry or "", "__name__")
    return "" if "__name__" in text else "; the script has no main guard, which processes that are spawned would need"


def _recorded(text: str, cuda: bool = False, workers: int = 0, **arguments: Scalar) -> Request:
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "DataLoader(" in line)
    workers = 2 if "2" in text else workers  # what a run of the example's outcome records
    site = Site("DataLoader", "train.py", line, arguments={"num_workers": workers, **arguments})
    facts = Facts(cpu_count=4, device_name="NVIDIA H200" if cuda else None)
    return example_request("input-bound", text, sites=[site], facts=facts, setting={"num_workers": 2})


_IMPORT = "from torch.utils.data import DataLoader\n"
_ARGPARSE = 'parser.add_argument("--num-workers", type=int, default={})\n'

FIXER = Fixer(
    name="loader-workers",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.input",
    settings=settings,
    order=30,
    examples=(
        Example(
            before=_IMPORT + "loader = DataLoader(data, batch_size=8)  # small\n",
            after=_IMPORT
            + "loader = DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)  # small\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(\n    data,\n    num_workers=0,  # for now\n    batch_size=8\n)\n",
            after=_IMPORT + "loader = DataLoader(\n    data,\n    num_workers=2,  # for now\n    batch_size=8,\n"
            "    persistent_workers=True,\n    pin_memory=True\n)\n",
            request=lambda text: _recorded(text, cuda=True),
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(StoredImages(2048), batch_size=args.batch, shuffle=True)  # small\n",
            after=_IMPORT + "loader = DataLoader(\n    StoredImages(2048),\n    batch_size=args.batch,\n"
            "    shuffle=True,\n    num_workers=2,\n    persistent_workers=True,\n)  # small\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data, 8, True, None, None, 0)\n",
            after=_IMPORT + "loader = DataLoader(data, 8, True, None, None, 2, persistent_workers=True)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "WORKERS = 1\nloader = DataLoader(data, num_workers=WORKERS)\n",
            after=_IMPORT + "WORKERS = 2\nloader = DataLoader(data, num_workers=WORKERS, persistent_workers=True)\n",
            request=lambda text: _recorded(text, workers=1),
        ),
        Example(
            before=_IMPORT + _ARGPARSE.format(0) + "loader = DataLoader(data, num_workers=args.num_workers)\n",
            after=_IMPORT
            + _ARGPARSE.format(2)
            + "loader = DataLoader(data, num_workers=args.num_workers, persistent_workers=args.num_workers > 0)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + _ARGPARSE.format(0) + "loader = DataLoader(data, num_workers=args.num_workers)\n",
            after=_IMPORT
            + _ARGPARSE.format(0)
            + "loader = DataLoader(data, num_workers=max(args.num_workers, 2), persistent_workers=True)\n",
            request=lambda text: _recorded(text, workers=1),
        ),
        Example(
            before=_IMPORT
            + "class Config:\n    workers: int = 0\n\nloader = DataLoader(data, num_workers=cfg.workers)\n",
            after=_IMPORT + "class Config:\n    workers: int = 2\n\n"
            "loader = DataLoader(data, num_workers=cfg.workers, persistent_workers=cfg.workers > 0)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data, **options)\n",
            after=_IMPORT + 'loader = DataLoader(data, **{**options, "num_workers": 2, "persistent_workers": True})\n',
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(dataset)\nfor epoch in range(9):\n    dataset.set_epoch(epoch)\n",
            after=_IMPORT
            + "loader = DataLoader(dataset, num_workers=2)\nfor epoch in range(9):\n    dataset.set_epoch(epoch)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "class Lines(IterableDataset):\n    pass\n\nloader = DataLoader(Lines())\n",
            after=None,
            request=_recorded,
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
