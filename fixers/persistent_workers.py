"""Keeps the worker processes of the data loader from one epoch to the next.

What it changes
    Sets `persistent_workers=True` for the training `DataLoader` that has workers, where the program sets its options.

Why it helps
    Without it all workers end with an epoch. The next one starts them anew, each with its copy of the dataset, and the
    first batches come only when they have done their first work, while the device waits.

Fix safety
    Changes the training: each epoch draws one random number less from the generator of the loader, so that from the
    second epoch on samples come in another random order, as they would with another seed, and what they draw goes on in
    each worker where it would begin anew. Left alone: a program that
    changes its dataset between epochs (`set_epoch`, an attribute that is set), since workers that live on would not see
    it; a loader that is built anew in each epoch; one that is gone through again before it has ended, by `zip` or in
    its own loop, since workers that live on serve one pass at a time. Kept workers keep their memory too, also during
    an evaluation.
"""

from __future__ import annotations

import re

from diagnose.fixer import Answer, Fixer, Gate, Request, Site, example_request, lines_with, word_diffs
from diagnose.source.batches.loader import Loader, set_option
from diagnose.source.samples.changing_samples import changes_by_name

_CHANGES = re.compile(r"\b\w*(?:dataset|data|ds|trainset|train_set)\w*\.(?:set_epoch\(|(?!self)\w+\s*=[^=])")


def rewrite(request: Request) -> Answer:
    """Keep the workers of the loaders that feed training."""
    loaders = (each for each in request.loaders().loaders if each.workers != 0)
    without = (each for each in loaders if each.options.value("persistent_workers") is not True)
    edits, reasons = set_option(
        without, "persistent_workers", True, lambda each: _why_not(request, each), lambda each: each.has_workers
    )
    return request.answer(edits, "keep the loader's workers from one epoch to the next", reasons=reasons)


def _why_not(request: Request, loader: Loader) -> str | None:
    if loader.made_in_a_loop:
        return "is built anew in each turn of a loop: build it before the loop, with persistent_workers=True."
    if loader.for_one_pass:
        return "is gone through once, where it is built: build it before all epochs, with persistent_workers=True."
    if changes_by_name(request.sources, _CHANGES, ("self.", "import ", "from ")):
        return "feeds a dataset that the program changes between epochs, which workers that live on would not see."
    return loader.why_none_live_on()


def _recorded(text: str, workers: int = 2) -> Request:
    line = lines_with(text, "DataLoader(")[0]
    persistent = "workers=True" in text or "workers > 0" in text or "s': True" in text
    arguments = {"num_workers": workers, "persistent_workers": persistent}
    site = Site("DataLoader", "train.py", line, arguments=arguments)
    return example_request("periodic-stall", text, sites=[site])


_IMPORT = "from torch.utils.data import DataLoader\n"
_ARGPARSE = 'parser.add_argument("--workers", type=int, default=2)\n'

FIXER = Fixer(
    name="persistent-workers",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    mechanism="idle.input",
    changes_loading=True,
    order=30,
    after=("loader-workers",),
    completes=("loader-workers",),
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "loader = DataLoader(data, num_workers=2{+, persistent_workers=True+})\n",
            _IMPORT + "loader = DataLoader(data, num_workers=os.cpu_count(){+, persistent_workers=True+})\n",
            (
                _IMPORT + _ARGPARSE + "loader = DataLoader(\n    data,\n    num_workers=args.workers,{+\n"
                "    persistent_workers=args.workers > 0,+}\n)\n"
            ),
            (
                _IMPORT + "more = {'num_workers': 2,\n        'shuffle': True{+,\n"
                "        'persistent_workers': True+}}\nloader = DataLoader(data, **more)\n"
            ),
        ),
        *word_diffs(
            lambda text: _recorded(text, workers=0),
            _IMPORT + "loader = DataLoader(data)\n",
        ),
        *word_diffs(
            _recorded,
            _IMPORT + "for epoch in range(9):\n    loader = DataLoader(data, num_workers=2)\n",
            (
                _IMPORT + "loader = DataLoader(dataset, num_workers=2)\nfor epoch in range(9):\n"
                "    dataset.set_epoch(epoch)\n"
            ),
        ),
    ),
)
