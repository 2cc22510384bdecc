"""Stops the search for parameters that a step does not use, where every step uses all.

What it changes
    Takes `find_unused_parameters=True` out of DistributedDataParallel, or sets it to False where a library is told.

Why it helps
    With it, every step walks the whole graph of the backward pass on the host before that begins, and reduces one more
    bitmap. The buckets are never put into the order in which gradients become ready, so that they overlap less.

Fix safety
    Bitwise, as long as every step of every rank uses every parameter. Where one does not, the next step fails with an
    error that says so, or the ranks wait for each other forever: the trial runs the program, and a layer that is
    dropped now and then may come only later. So programs whose modules drop layers, branch on random numbers or on a
    switch that is set while they train, use other parts for other inputs, or are frozen after they are wrapped are left
    to people.
"""

from __future__ import annotations

from diagnose.fixer import Advice, Answer, Edits, Fixer, Gate, Request, Site, example_request, word_diffs
from diagnose.source.distributed.data_parallel import DataParallel, data_parallel
from diagnose.source.distributed.dynamic_parameters import frozen_later, varies
from diagnose.source.tree.arguments import argument, remove_argument, set_keywords
from diagnose.source.tree.edits import Splice

_OPTION = "find_unused_parameters"
_LIGHTNING_SEARCHES = "ddp_find_unused_parameters_true"
_SUMMARY = "do not search for unused parameters"


def rewrite(request: Request) -> Answer:
    """Leave the option to its default on every wrapper that sets it."""
    found = data_parallel(request.sources, request.sites)
    wrappers = [one for one in found if one.code(_OPTION) not in (None, "False")]
    if not wrappers:
        return None if any(one.is_wrapper for one in found) else _through(request)
    unsure = varies(request.sources)
    if unsure is not None:
        return Advice(f"{unsure} chooses what a step uses: `{_OPTION}` may be needed, now and then.")
    frozen = next((at for one in wrappers if (at := frozen_later(request.sources, one.path, one.call))), None)
    if frozen is not None:
        return Advice(f"{frozen} freezes parameters after they are wrapped: `{_OPTION}` is needed from then on.")
    switched = [one for one in wrappers if one.code(_OPTION) != "True"]
    if switched:
        return Advice(f"{switched[0].line} takes {_OPTION} from `{switched[0].code(_OPTION)}`: let that be False.")
    edits = [(one.path, _without(one)) for one in wrappers]
    return Edits(request.edited(edits), _SUMMARY)


def _through(request: Request) -> Answer:
    """The argument of a library that makes the wrapper; the Trainer of transformers searches unless told otherwise."""
    for trainer in request.trainers():
        if trainer.knows(_OPTION) and trainer.options.value(_OPTION) is not False:
            placed = trainer.options.place(_OPTION, False)
        elif trainer.knows("strategy") and trainer.options.value("strategy") == _LIGHTNING_SEARCHES:
            placed = trainer.options.place("strategy", "ddp")
        else:
            continue
        if placed.reason:
            return Advice(placed.reason)
        return Edits(request.edited(placed.edits.items()), _SUMMARY)
    return None


def _without(one: DataParallel) -> list[Splice]:
    arg = argument(one.call, _OPTION)
    if one.is_wrapper and arg is not None:
        return [remove_argument(one.source, one.call, arg)]
    return set_keywords(one.source, one.call, {_OPTION: "False"})


def _recorded(text: str) -> Request:
    site = Site("DistributedDataParallel", "train.py", 2, arguments={_OPTION: True})
    return example_request("unused-parameter-search", text, sites=[site])


_IMPORT = "from torch.nn.parallel import DistributedDataParallel\n"

FIXER = Fixer(
    name="ddp-all-used",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+exposed_comm+exposed_copy+idle",
    order=80,
    examples=(
        *word_diffs(
            _recorded,
            _IMPORT + "model = DistributedDataParallel(model, device_ids=[rank]{-, find_unused_parameters=True-})\n",
        ),
        *word_diffs(
            lambda text: example_request("unused-parameter-search", text),
            (
                "from accelerate.utils import DistributedDataParallelKwargs\n"
                "kwargs = DistributedDataParallelKwargs(find_unused_parameters={-True-}{+False+})\n"
            ),
            (
                "from transformers import TrainingArguments\n"
                'arguments = TrainingArguments("out", bf16=True{+, ddp_find_unused_parameters=False+})\n'
            ),
            ('from lightning import Trainer\nt = Trainer(strategy="{-ddp_find_unused_parameters_true-}{+ddp+}")\n'),
        ),
        *word_diffs(
            _recorded,
            _IMPORT + "model = DistributedDataParallel(model, device_ids=[rank])\n",
            _IMPORT + "model = DistributedDataParallel(model, find_unused_parameters=args.find)\n",
            (
                _IMPORT
                + "model = DistributedDataParallel(model, find_unused_parameters=True)\nclass Deep(nn.Module):\n"
                "    def forward(self, x):\n        if torch.rand(()) < self.layerdrop:\n            return x\n"
                "        return self.layer(x)\n"
            ),
        ),
    ),
)
