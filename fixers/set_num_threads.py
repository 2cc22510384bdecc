"""Lets each worker of a loader use one core, instead of all of them each.

What it changes
    Sets `OMP_NUM_THREADS`, `OPENBLAS_NUM_THREADS` and `MKL_NUM_THREADS` to 1 at the top of the script, before NumPy
    and torch are imported, and gives torch in the main process the cores that the workers leave, by
    `torch.set_num_threads`.

Why it helps
    NumPy's matrix products, and other libraries with threads, use as many threads as there are cores, in every worker
    process: workers × cores threads compete for the cores, and the thread that feeds the device waits for its turn.

Fix safety
    Rounding: a sum over another number of threads is added up in another order. Code of the main process that relies
    on NumPy's threads gets slower; the trial shows whether that matters. A program that sets any of these itself, or
    reads how many threads torch has or its whole environment, is left alone, and so is one whose loaders have no
    workers.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, Scalar, Site, example_request
from diagnose.program.environment import before_imports
from diagnose.source.settings.process_settings import setting_read
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import (
    Source,
    Splice,
    call_name,
    ensure_import,
    insert_after,
    parse,
    set_in_torch,
    splice,
)
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches

_SETS = re.compile(r"set_num_threads\(|threadpool_limits|threadpoolctl|\b(OMP|OPENBLAS|MKL)_NUM_THREADS")
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_UPDATE = "os.environ.update({})".format(", ".join(f'{name}="1"' for name in _VARIABLES))
_COMMENT = "# One thread each: the loader's workers share the cores with each other and with training."


def rewrite(request: Request) -> Answer:
    """Limit the threads of libraries at the top, and give the rest to torch."""
    if any_matches(_SETS, request.sources.values()):
        return None
    where = setting_read(request.sources, "torch.get_num_threads", *_VARIABLES)
    if where is not None:
        return Advice(f"{where} reads the number of threads, which the program may show: set it there.")
    workers = _workers(request)
    if not workers:
        return Advice(
            "No loader has workers: what else runs on these cores, or how many ranks share them? Set OMP_NUM_THREADS "
            "in the shell to the cores of the machine divided by its processes."
        )
    text = request.sources.get(request.entry or "", "")
    source = parse(text)
    limits = before_imports(source, [_COMMENT, _UPDATE]) if source is not None else []
    if request.entry is None or source is None or not limits:
        return Advice("Set OMP_NUM_THREADS=1 in the shell: the script that starts is not a file we can edit.")
    splices = [*limits, *_torch_threads(source, workers)]
    return Edits({request.entry: splice(text, splices)}, "let each worker of the loader use one thread")


def _workers(request: Request) -> int | str | None:
    """Return how many workers there are, as recorded or as written; None where there are none."""
    recorded = [site.arguments.get("num_workers") for site in request.sites if site.kind == "DataLoader"]
    counts = [count for count in recorded if isinstance(count, int)]
    if counts:
        return max(counts) or None
    for _, source in files_with(request.sources, "num_workers"):
        for call in source.calls_named("DataLoader"):
            given = argument(call, "num_workers", 5)
            if given is not None:
                return None if source.code(given.value) == "0" else source.code(given.value)
    return None


def _torch_threads(source: Source, workers: int | str) -> list[Splice]:
    """A line that gives torch in the main process what the workers leave: after the loader, or after the imports."""
    torch, imports = ensure_import(source, "torch")
    for assign in source.every(cst.Assign):
        target = assign.targets[0].target
        statement = source.statement(assign)
        made = isinstance(assign.value, cst.Call) and call_name(assign.value) == "DataLoader"
        if made and isinstance(target, cst.Name) and statement is not None:
            left = f"max(1, (os.cpu_count() or 1) - {target.value}.num_workers)"
            return [*imports, insert_after(source, statement, [f"{torch}.set_num_threads({left})"])]
    line = f"set_num_threads(max(1, (os.cpu_count() or 1) - {workers}))"
    return set_in_torch(source, line) if isinstance(workers, int) else []


def _recorded(text: str, workers: int = 8) -> Request:
    line = next((number for number, line in enumerate(text.splitlines(), 1) if "DataLoader(" in line), 1)
    arguments: dict[str, Scalar] = {"num_workers": workers}
    sites = [Site("DataLoader", "train.py", line, arguments=arguments)]
    return example_request("cpu-contention", text, sites=sites, facts=Facts(cpu_count=8))


_LOADER = "loader = DataLoader(\n    data,\n    num_workers=8,\n)\n"
_LIMITS = f"{_COMMENT}\n{_UPDATE}\n\n"

FIXER = Fixer(
    name="set-num-threads",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle",
    order=10,
    examples=(
        Example(
            "import os\n\nimport numpy as np\nimport torch\n\n" + _LOADER,
            f"import os\n\n{_LIMITS}import numpy as np\nimport torch\n\n{_LOADER}"
            "torch.set_num_threads(max(1, (os.cpu_count() or 1) - loader.num_workers))\n",
            _recorded,
        ),
        Example(
            "import torch\nfrom data import make_loaders\n\ntrain, test = make_loaders()\n",
            f"import os\n\n{_LIMITS}import torch\nfrom data import make_loaders\n\n"
            "torch.set_num_threads(max(1, (os.cpu_count() or 1) - 8))\n\ntrain, test = make_loaders()\n",
            _recorded,
        ),
        Example("import torch\ntorch.set_num_threads(4)\n" + _LOADER, None, _recorded),
        Example("import torch\n" + _LOADER, None, lambda text: _recorded(text, workers=0)),
    ),
)
