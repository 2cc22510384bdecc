"""Lets workers load more batches ahead.

What it changes
    Raises `prefetch_factor`, the number of batches that each worker of the training `DataLoader` loads ahead, where the
    program sets it, or gives the loader one. The number is chosen by trying.

Why it helps
    A worker stops once it is two batches ahead. Where some batches take much longer to load than others, or the
    training takes several at once and then none for a while, a larger supply keeps the device from waiting although
    the workers are fast enough on average. Where they are not, it does not help: `loader-workers` gives more of them.

Fix safety
    Bitwise: the same batches come in the same order. Each worker holds as many batches of its own in host memory, twice
    that where they are pinned. Left alone: a loader without workers, which cannot load ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, Scalar, Site, example_request, lines_with, word_diffs
from diagnose.source.batches.loader import Loader, set_option

_USUAL = 2  # DataLoader's default `prefetch_factor`
_TRIED = (4, 8)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Batches per worker to try, above the present number."""
    present = max((_ahead(loader) for loader in request.loaders().loaders), default=_USUAL)
    return [{"prefetch_factor": count} for count in _TRIED if count > present] or [{}]


def rewrite(request: Request) -> Answer:
    """Load more batches ahead in the loaders that feed training."""
    wanted = request.setting.get("prefetch_factor", settings(request)[0].get("prefetch_factor"))
    if not isinstance(wanted, int):
        return None
    fewer = (each for each in request.loaders().loaders if each.workers != 0 and _ahead(each) < wanted)
    edits, reasons = set_option(
        fewer, "prefetch_factor", wanted, Loader.why_no_order_ahead, lambda each: _code(each, wanted)
    )
    return request.answer(edits, f"let each worker load {wanted} batches ahead", reasons=reasons)


def _ahead(loader: Loader) -> int:
    count = loader.options.value("prefetch_factor")
    return count if isinstance(count, int) else _USUAL


def _code(loader: Loader, wanted: int) -> str:
    """The number; without workers it must not be given, and how many there are may be decided elsewhere."""
    condition = loader.has_workers
    return str(wanted) if condition == "True" else f"{wanted} if {condition} else None"


def _recorded(text: str, workers: int = 2, **arguments: Scalar) -> Request:
    line = lines_with(text, "DataLoader(")[0]
    ahead = 4 if "4" in text else 2  # what a run of the example's outcome records
    site = Site(
        "DataLoader", "train.py", line, arguments={"num_workers": workers, "prefetch_factor": ahead, **arguments}
    )
    return example_request("input-bound", text, sites=[site], setting={"prefetch_factor": 4})


_IMPORT = "from torch.utils.data import DataLoader\n"
_ARGPARSE = 'parser.add_argument("--workers", type=int, default=2)\n'

FIXER = Fixer(
    name="loader-prefetch",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle.input",
    changes_loading=True,
    settings=settings,
    order=30,
    after=("loader-workers",),
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "loader = DataLoader(data, num_workers=2{+, prefetch_factor=4+})\n",
            _IMPORT + "loader = DataLoader(data, num_workers=2, prefetch_factor={-2-}{+4+})  # few\n",
            _IMPORT + "more = {'num_workers': 2{+, 'prefetch_factor': 4+}}\nloader = DataLoader(data, **more)\n",
        ),
        Example(
            before=_IMPORT + _ARGPARSE + "loader = DataLoader(data, num_workers=args.workers)\n",
            after=_IMPORT + _ARGPARSE + "loader = DataLoader(data, num_workers=args.workers, "
            "prefetch_factor=4 if args.workers > 0 else None)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data)\n",
            after=None,
            request=lambda text: _recorded(text, workers=0),
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data, num_workers=2, prefetch_factor=ahead())\n",
            after=None,
            request=lambda text: _recorded(text, prefetch_factor=16),
        ),
    ),
)
