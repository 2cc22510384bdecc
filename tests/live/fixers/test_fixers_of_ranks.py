"""No fix lets one rank wait for another, apply other gradients, or keep other weights than the program's own does."""

from __future__ import annotations

import textwrap

import pytest
from rank_programs import HEAD, advised
from rewriting import FIXERS, rewritten

from diagnose.fixer import Advice, Edits, example_request
from diagnose.model import Site

SENDING = (
    HEAD
    + """model = DDP(build())
for x in batches:
    model(x).mean().backward()
{lines}"""
)


MICRO_STEPS = (
    HEAD
    + """model = DDP(build())
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / accumulate
        loss.backward()
{step}"""
)
STEP = "        if (i + 1) % accumulate == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (STEP + "    optimizer.step()  # what is left of the epoch\n    optimizer.zero_grad()\n", "also steps"),
        (
            "        if (i + 1) % accumulate:\n            log(loss)\n        else:\n            optimizer.step()\n",
            "also",
        ),
        (STEP + "        if i == 7:\n            optimizer.step()\n", "also steps"),
    ],
)
def test_gradients_that_only_one_rank_has_are_never_stepped_with(step: str, why: str) -> None:
    """An optimizer's step that the condition does not cover would find gradients that no rank has reduced."""
    assert rewritten("no-sync", MICRO_STEPS.format(step=STEP)) is not None
    assert why in advised("no-sync", MICRO_STEPS.format(step=step))


def test_a_function_that_makes_the_backward_pass_may_step_in_every_turn() -> None:
    given = MICRO_STEPS.format(step=STEP).replace("loss.backward()", "update(loss)")
    helper = "def update(loss):\n    loss.backward()\n    first.step()\n\n\n"
    assert rewritten("no-sync", given.replace("model = DDP", helper + "model = DDP")) is None


@pytest.mark.parametrize("leaves", ["continue", "break"])
def test_a_last_micro_step_that_may_not_come_is_not_waited_for(leaves: str) -> None:
    text = (
        HEAD
        + "model = DDP(build())\nfor step in range(9):\n    for micro_step in range(4):\n        x = next(batches)\n"
        f"        if x is None:\n            {leaves}\n        model(x).mean().backward()\n    optimizer.step()\n"
    )
    assert "No edit is made: the loop may" in advised("no-sync", text)
    assert rewritten("no-sync", text.replace(f"            {leaves}\n", "            x = 0\n")) is not None


def test_gradients_that_are_not_reduced_yet_are_not_dropped_with_an_epoch() -> None:
    """`zero_grad` does not find what `fully_shard` has only added up."""
    text = MICRO_STEPS.format(step=STEP).replace(
        "model = DDP(build())", "from torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)"
    )
    assert "set_requires_gradient_sync" in (rewritten("no-sync", text) or "")
    cleared = text.replace("    for i, (", "    optimizer.zero_grad()\n    for i, (")
    assert "set_requires_gradient_sync" in advised("no-sync", cleared)


def test_the_optimizer_in_a_question_within_the_question_counts() -> None:
    step = (
        "        if (i + 1) % accumulate == 0:\n            if scaler is None:\n                optimizer.step()\n"
        "            else:\n                scaler.step(optimizer)\n            optimizer.zero_grad()\n"
    )
    assert "if (i + 1) % accumulate == 0 else model.no_sync():" in (
        rewritten("no-sync", MICRO_STEPS.format(step=step)) or ""
    )


SENDS = "    for p in model.parameters():\n        dist.broadcast(p.data, src=0)\n"


@pytest.mark.parametrize(
    "lines",
    [
        "    optimizer.step()\n    update(average, model)\n" + SENDS.replace("model.", "average."),
        "    optimizer.step()\n" + SENDS.replace("src=0", "src=owner[p]"),
        "    if dist.get_rank() == 0:\n        optimizer.step()\n" + SENDS,
        "    optimizer.step()\n    if is_master:\n        model.load_state_dict(best)\n" + SENDS,
        "    optimizer.step()\n    if worse:\n        restore(model)\n" + textwrap.indent(SENDS, "    "),
    ],
    ids=["an average", "each its own part", "one steps", "one loads", "after a change"],
)
def test_weights_that_differ_between_ranks_are_still_sent(lines: str) -> None:
    assert rewritten("drop-broadcast", SENDING.format(lines=lines)) is None


@pytest.mark.parametrize(
    "lines",
    [
        "    optimizer.step()\n" + SENDS,
        "    optimizer.step()\n    if dist.get_world_size() > 1:\n" + textwrap.indent(SENDS, "    "),
        "    optimizer.step()\n    if dist.get_rank() == 0:\n        print(x)\n"
        + SENDS.replace("model.", "model.module."),
    ],
)
def test_weights_that_are_equal_are_not_sent(lines: str) -> None:
    assert "broadcast" not in (rewritten("drop-broadcast", SENDING.format(lines=lines)) or "broadcast")


@pytest.mark.parametrize("name", ["ddp-buckets", "no-buffer-broadcast", "bf16-gradients"])
@pytest.mark.parametrize(
    "other",
    ["from apex.parallel import DistributedDataParallel as DDP", "class DDP(nn.Module):\n    pass\n"],
    ids=["apex", "own"],
)
def test_wrappers_of_the_same_name_keep_their_own_options(name: str, other: str) -> None:
    text = HEAD + "model = DDP(model)\n"
    assert rewritten(name, text) is not None
    assert rewritten(name, text.replace("from torch.nn.parallel import DistributedDataParallel as DDP", other)) is None


def test_a_wrapper_is_known_by_what_it_is_and_not_by_its_name() -> None:
    text = HEAD.replace("as DDP", "as Replicated") + "model: nn.Module = Replicated(build())\n"
    assert "Replicated(build(), broadcast_buffers=False)" in (rewritten("no-buffer-broadcast", text) or "")
    assert "model.register_comm_hook" in (rewritten("bf16-gradients", text) or "")


def test_a_hook_is_registered_only_where_there_is_a_wrapper() -> None:
    for name in ("bf16-gradients", "powersgd-gradients"):
        assert rewritten(name, HEAD + "if several: model = DDP(model)\n") is None
        assert "\n    model.register_comm_hook" in (
            rewritten(name, HEAD + "if several:\n    model = DDP(model)\n") or ""
        )


def test_another_librarys_sharding_keeps_its_own_options() -> None:
    text = "from fairscale.nn import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    assert rewritten("fsdp-keep", text) is None
    assert rewritten("fsdp-keep", text.replace("fairscale.nn", "torch.distributed.fsdp")) is not None


@pytest.mark.parametrize(("name", "why"), [("bf16-gradients", "needs NCCL"), ("powersgd-gradients", "the ranks hang")])
def test_no_hook_is_registered_that_gloo_cannot_bear(name: str, why: str) -> None:
    text = HEAD + 'dist.init_process_group("gloo")\nmodel = DDP(build())\n'
    assert why in advised(name, text)
    assert why in advised(name, text.replace('"gloo"', 'rank=0, backend="gloo"'))
    assert rewritten(name, text.replace("gloo", "nccl")) is not None
    either = text.replace('"gloo"', '"nccl" if on_gpu else "gloo"')
    assert rewritten(name, either) is not None
    line = either.splitlines().index("model = DDP(build())") + 1
    for backend, kind in (("gloo", Advice), ("nccl", Edits)):
        seen = Site("DistributedDataParallel", "train.py", line, None, {"backend": backend})
        answer = FIXERS[name].rewrite(example_request("slow-link", either, sites=[seen]))
        assert isinstance(answer, kind), (backend, answer)


def test_a_wrapper_of_a_static_graph_reduces_in_every_micro_step() -> None:
    text = MICRO_STEPS.format(step=STEP)
    assert rewritten("no-sync", text.replace("DDP(build())", "DDP(build(), static_graph=False)")) is not None
    assert "beside `static_graph`" in advised(
        "no-sync", text.replace("DDP(build())", "DDP(build(), static_graph=True)")
    )
    assert "beside `static_graph`" in advised("no-sync", text.replace("DDP(build())", "DDP(build(), **options)"))
