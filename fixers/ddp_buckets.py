"""Chooses the sizes of the buckets in which gradients are reduced.

What it changes
    `bucket_cap_mb` of DistributedDataParallel: taken out where the program sets a small one; else set to a larger one.
    Several are tried.

Why it helps
    A bucket is reduced once all of it is ready, beside the rest of the backward pass. Many small ones pay the latency
    of a collective each; large ones begin late. The default, 25 MiB, fits slower links than those between devices of
    today.

Fix safety
    Rounding: with more than two ranks, a number's place in its bucket decides in which order the ranks are added up.
    A parameter is never cut, so that buckets may be larger than asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, Scalar, Site, example_request
from diagnose.source.distributed.data_parallel import DataParallel, data_parallel
from diagnose.source.tree.arguments import argument, remove_argument, set_keywords
from diagnose.source.tree.edits import Splice

_SIZES_MB = (100, 50, 200, 10)
"""Uniform sizes worth a trial beside the default: none of them is the best on every link."""
_DEFAULT_MB = 25  # DistributedDataParallel's default
_OPTIONS = ("bucket_cap_mb", "bucket_cap_mb_list")


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """The default where the program has another size, then larger and smaller ones."""
    wrappers = _wrappers(request)
    if not wrappers:
        known = any(trainer.knows("bucket_cap_mb") for trainer in request.trainers())
        return tuple({"megabytes": size} for size in _SIZES_MB) if known else ({},)
    now = _size_now(wrappers[0])
    small = now is not None and now < _DEFAULT_MB
    sizes = [size for size in _SIZES_MB if size != now and not (small and size < _DEFAULT_MB)]
    return [{"megabytes": size} for size in (*([_DEFAULT_MB] if now is not None else []), *sizes)]


def rewrite(request: Request) -> Answer:
    """Put the size of the setting into every wrapper."""
    wrappers = _wrappers(request)
    chosen = request.setting or settings(request)[0]
    if not wrappers:
        return _through(request, chosen)
    for one in wrappers:
        given = one.given("bucket_cap_mb") or one.given("bucket_cap_mb_list")
        if given is not None and not isinstance(given, cst.Integer | cst.Float | cst.List | cst.Tuple):
            return Advice(f"{one.line} takes the size of its buckets from `{one.source.code(given)}`: choose it there.")
    edits = [(one.path, _sized(one, chosen)) for one in wrappers]
    if not any(splices for _, splices in edits):
        return None
    return Edits(request.edited(edits), f"reduce gradients in buckets of {chosen['megabytes']} MiB")


def _through(request: Request, chosen: Mapping[str, Scalar]) -> Answer:
    """The argument of a library that makes the wrapper."""
    for trainer in request.trainers():
        size = chosen.get("megabytes")
        if trainer.knows("bucket_cap_mb") and size is not None and trainer.options.value("bucket_cap_mb") != size:
            placed = trainer.options.place("bucket_cap_mb", size)
            if placed.reason:
                return Advice(placed.reason)
            return Edits(request.edited(placed.edits.items()), f"reduce gradients in buckets of {size} MiB")
    return None


def _wrappers(request: Request) -> list[DataParallel]:
    return [one for one in data_parallel(request.sources, request.sites) if not one.open]


def _sized(one: DataParallel, chosen: Mapping[str, Scalar]) -> list[Splice]:
    if chosen["megabytes"] != _DEFAULT_MB:
        return set_keywords(
            one.source, one.call, {"bucket_cap_mb": str(chosen["megabytes"])}, remove=["bucket_cap_mb_list"]
        )
    given = [arg for option in _OPTIONS if (arg := argument(one.call, option)) is not None]
    return [remove_argument(one.source, one.call, given[0])] if len(given) == 1 else []


def _size_now(one: DataParallel) -> float | None:
    """Return what the program asks for in MiB, where that is not the default."""
    given = one.given("bucket_cap_mb")
    if isinstance(given, cst.Integer | cst.Float):
        return float(given.evaluated_value)
    return 0.0 if one.given("bucket_cap_mb_list") is not None else None


def _recorded(text: str, **setting: Scalar) -> Request:
    site = Site("DistributedDataParallel", "train.py", 2)
    return example_request("small-buckets", text, sites=[site], setting=setting, facts=Facts(torch_version="2.11.0"))


_IMPORT = "from torch.nn.parallel import DistributedDataParallel\n"

FIXER = Fixer(
    name="ddp-buckets",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="exposed_comm+compute+idle",
    settings=settings,
    order=80,
    after=("no-sync", "use-ddp", "ddp-all-used"),
    examples=(
        Example(
            _IMPORT + "model = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=0.1)\n",
            _IMPORT + "model = DistributedDataParallel(model, device_ids=[rank])\n",
            lambda text: _recorded(text, megabytes=_DEFAULT_MB),
        ),
        Example(
            _IMPORT + "model = DistributedDataParallel(model, device_ids=[rank])\n",
            _IMPORT + "model = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=100)\n",
            lambda text: _recorded(text, megabytes=100),
        ),
        Example(
            'from transformers import TrainingArguments\narguments = TrainingArguments("out")\n',
            'from transformers import TrainingArguments\narguments = TrainingArguments("out", ddp_bucket_cap_mb=100)\n',
            lambda text: _recorded(text, megabytes=100),
        ),
        Example(_IMPORT + "model = DistributedDataParallel(model, bucket_cap_mb=args.cap)\n", None, _recorded),
        Example(_IMPORT + "model = DistributedDataParallel(model, **options)\n", None, _recorded),
    ),
)
