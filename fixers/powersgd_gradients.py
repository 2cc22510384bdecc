"""Sends gradients between ranks as products of thin matrices (PowerSGD).

What it changes
    Registers torch's `powerSGD_hook` on the DistributedDataParallel right after it is made, with error feedback.

Why it helps
    Of a matrix of m by n numbers, `matrix_approximation_rank` times m+n travel. Over a network that takes many times as
    long as the backward pass, nothing else helps as much without more work per step.

Fix safety
    Training, and more so than rounding: every step applies an approximation of its gradients. What one leaves out is
    kept and added to the next (error feedback), which takes memory as large as the gradients. The first
    `start_powerSGD_iter` steps send gradients whole, since those of the beginning approximate badly: 10 here, so that
    the trial sees the hook at work; a tenth of the whole training is usual. Left alone: programs with a hook of their
    own, and gradients that are in half precision already. Over gloo there is advice: the hook goes on from one
    collective to the next as each ends, so that ranks send those of several buckets in different orders, and hang.
    NCCL's are ordered where they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Advice, Answer, Example, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.distributed.data_parallel import carried_by_gloo, hooked_gradients

_MODULE = "torch.distributed.algorithms.ddp_comm_hooks"
_RANKS = (4, 1)
_STARTS_AT = 10  # steps of plain all-reduce before; chosen, not measured


def settings(_request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Ranks of the approximation, the truer one first."""
    return tuple({"rank": rank} for rank in _RANKS)


def rewrite(request: Request) -> Answer:
    """Register the hook after the wrapper is made."""
    rank = request.setting.get("rank", _RANKS[0])
    options = f"matrix_approximation_rank={rank}, start_powerSGD_iter={_STARTS_AT}"
    hook = hooked_gradients(
        request.sources,
        request.sites,
        f"from {_MODULE} import powerSGD_hook",
        f"power_sgd = powerSGD_hook.PowerSGDState({{group}}, {options})",
        "{name}.register_comm_hook(power_sgd, powerSGD_hook.powerSGD_hook)",
    )
    if hook and carried_by_gloo(request.sources, request.sites):
        return Advice(
            "these ranks exchange gradients over gloo, where PowerSGD's collectives of several buckets come in another "
            "order on each rank, and the ranks hang; over NCCL they do not. By hand: a bucket_cap_mb that holds all "
            "gradients in one bucket, then the hook"
        )
    return request.answer(hook, f"send gradients as products of rank {rank}")


def _recorded(text: str) -> Request:
    return example_request("slow-link", text, setting={"rank": 4})


_BEFORE = """from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)
"""

FIXER = Fixer(
    name="powersgd-gradients",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    mechanism="exposed_comm+compute+idle",
    settings=settings,
    order=80,
    conflicts=("bf16-gradients",),
    after=("ddp-buckets", "no-sync", "bf16-gradients"),
    examples=(
        Example(
            _BEFORE,
            """from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

model = DistributedDataParallel(model)
power_sgd = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
model.register_comm_hook(power_sgd, powerSGD_hook.powerSGD_hook)
""",
            _recorded,
        ),
        Example(
            _BEFORE.replace("(model)", "(model, **options)"),
            """from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

model = DistributedDataParallel(model, **options)
power_sgd = powerSGD_hook.PowerSGDState(model.process_group, matrix_approximation_rank=4, start_powerSGD_iter=10)
model.register_comm_hook(power_sgd, powerSGD_hook.powerSGD_hook)
""",
            _recorded,
        ),
        Example(_BEFORE + "model.register_comm_hook(state, hook)\n", None, _recorded),
    ),
)
