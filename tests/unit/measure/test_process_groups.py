"""What the groups of a job are for, and the bubble of a pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_jobs import KERNELS, MIB, MS, measured

from diagnose.measure import Measures
from diagnose.measure.job.process_groups import Role, pipeline_bubble, rank_groups
from diagnose.trace import Collective
from diagnose.trace.drawn import drawn


def role(picture: str, kind: str, size: int = 96 * MIB) -> Role:
    (group,) = rank_groups(measured(picture, {"c": Collective(kind, size, 4, "some", members=(0, 1, 2, 3))}))
    return group.role


AFTER = "gpu   : kkbbbb   xx\ngpu 20:     cccc\nbwd   :   BBBB\nopt   :           O"
BEFORE = "gpu   : k  k  kbbbb xx\ngpu 20:  cc cc\nbwd   :        BBBB\nopt   :              O"


def test_what_reduces_gradients_is_data_parallel() -> None:
    assert role(AFTER, "all_reduce") is Role.DATA


def test_what_scatters_gradients_shards_them() -> None:
    assert role(AFTER, "reduce_scatter") is Role.SHARDED


def test_what_sums_activations_in_the_forward_pass_is_tensor_parallel() -> None:
    assert role(BEFORE, "all_reduce") is Role.TENSOR


def test_a_loss_alone_is_no_tensor_parallelism() -> None:
    once = "gpu   : kkkkk  bbbb xx\ngpu 20:      cc\nbwd   :        BBBB\nopt   :              O"
    assert role(once, "all_reduce", 4) is Role.CONTROL


def test_what_goes_all_to_all_is_an_exchange_and_what_is_sent_a_pipeline() -> None:
    assert role(BEFORE, "all_to_all") is Role.EXCHANGE
    assert role(BEFORE, "send_recv") is Role.PIPELINE


def test_point_to_point_kernels_without_arguments_may_be_anything() -> None:
    unnamed = drawn(
        BEFORE, repeat=4, kernels={"c": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", **KERNELS}
    )
    (group,) = rank_groups(Measures(unnamed))
    assert group.role in (Role.PIPELINE, Role.UNKNOWN)
    bare = replace(unnamed, collectives=(), device=replace(unnamed.device, collective=np.full(len(unnamed.device), -1)))
    (group,) = rank_groups(Measures(bare))
    assert group.role is Role.UNKNOWN
    assert pipeline_bubble(Measures(bare)) is None


def test_a_stage_idles_in_the_bubble_and_an_even_one_would_idle_less() -> None:
    picture = """
        gpu   :   kkbb  kkbb  xx
        gpu 20: ss    ss
        bwd   :     BB    BB
        opt   :                O
    """
    stage = measured(picture, {"s": Collective("send_recv", 8 * MIB, 2, "pp", members=(0, 1))})
    bubble = pipeline_bubble(stage)
    assert bubble is not None
    assert (bubble.stages, bubble.microbatches) == (2, 2)
    assert bubble.least_share == pytest.approx(1 / 3)
    assert bubble.idle_ns == pytest.approx(6 * MS, rel=0.05)  # of 16 ms; the first two are the other stage's
