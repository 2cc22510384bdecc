"""Lets the data loader hand out batches in pinned memory.

What it changes
    Sets `pin_memory=True` for the training `DataLoader`, where the program sets it: in the call, in the dictionary of
    options that the call takes, in a constant, a default or a config file.

Why it helps
    The device reads pinned memory only. A batch in ordinary memory is copied into a pinned buffer first, piece by
    piece, by the thread that launches all other work, and that thread waits for it. Pinned by the loader, in a thread
    of its own, the batch goes to the device in one copy, which `non_blocking=True` lets run beside the host.

Fix safety
    Bitwise: the same bytes reach the device. As many batches as the loader holds ready are kept in memory that cannot
    be swapped. Left alone: loaders whose datasets make CUDA tensors, which cannot be pinned, batches that are no copies
    of what the dataset holds where training writes into them, a loader of which the program reads `pin_memory`, and
    programs without a CUDA device. Batches of a class of the program's own are pinned only where that class has a
    `pin_memory` method.
"""

from __future__ import annotations

from diagnose.fixer import (
    Answer,
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
from diagnose.source.batches.loader import Loader, set_option


def rewrite(request: Request) -> Answer:
    """Pin the batches of the loaders that feed training."""
    if request.facts.device_name is None:
        return None
    found = request.loaders()
    of_others = [
        f"{site.file}:{site.line} builds a DataLoader in code that is not yours to edit: pass pin_memory=True on."
        for site in found.foreign
        if site.arguments.get("pin_memory") is not True
    ]
    pageable = (each for each in found.loaders if each.options.value("pin_memory") is not True)
    edits, reasons = set_option(pageable, "pin_memory", True, Loader.why_not_pinned)
    return request.answer(edits, "let the loader hand out batches in pinned memory", reasons=[*of_others, *reasons])


def _recorded(text: str, cuda: bool = True, **arguments: Scalar) -> Request:
    line = lines_with(text, "DataLoader(")[0]
    site = Site("DataLoader", "train.py", line, arguments={"pin_memory": "memory=True" in text, **arguments})
    facts = Facts(device_name="NVIDIA H200" if cuda else None)
    return example_request("pageable-copies", text, sites=[site], facts=facts)


_IMPORT = "from torch.utils.data import DataLoader\n"

FIXER = Fixer(
    name="loader-pin",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_copy+idle",
    changes_loading=True,
    order=30,
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "loader = DataLoader(data, 8, shuffle=True{+, pin_memory=True+})\n",
            _IMPORT + "loader = DataLoader(\n    data,\n    pin_memory={-False-}{+True+},  # for now\n)\n",
            _IMPORT + "options = dict(batch_size=8{+, pin_memory=True+})\nloader = DataLoader(data, **options)\n",
        ),
        Example(
            before=_IMPORT + "options = {'batch_size': 8, 'pin_memory': False}\nloader = DataLoader(data, **options)\n",
            after=_IMPORT + "options = {'batch_size': 8, 'pin_memory': True}\nloader = DataLoader(data, **options)\n",
            request=lambda text: _recorded(text, pin_memory="': True" in text),
        ),
        Example(
            before=_IMPORT + "class Config:\n    pin: bool = False\n\nloader = DataLoader(data, pin_memory=cfg.pin)\n",
            after=_IMPORT + "class Config:\n    pin: bool = True\n\nloader = DataLoader(data, pin_memory=cfg.pin)\n",
            request=lambda text: _recorded(text, pin_memory="= True" in text),
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data, pin_memory=torch.cuda.is_available())\n",
            after=None,
            request=lambda text: _recorded(text, pin_memory=True),
        ),
        *word_diffs(
            _recorded,
            _IMPORT + "loader = DataLoader(data, pin_memory=wanted())\n",
            (
                _IMPORT + "class D(Dataset):\n    def __getitem__(self, i):\n        return x[i].cuda()\n\n"
                "data = D()\nloader = DataLoader(data)\n"
            ),
        ),
        Example(
            before=_IMPORT + "loader = DataLoader(data)\n",
            after=None,
            request=lambda text: _recorded(text, cuda=False),
        ),
    ),
)
