"""What collectives cost besides their own time, and what is gained where they do not take place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.overheads import BESIDE, held_share, issuing, packing, slowed
from diagnose.measure.comm.redundant_collectives import without_collectives
from diagnose.rule import Claim
from diagnose.trace import Collective, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import Bool

MS = 1_000_000
RULES = plugins.load_rules().rules
MODEL = {"b": "gemm", "m": "mul", "x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"}
STEPS = 3


def accumulating() -> Trace:
    """Two micro-steps that DistributedDataParallel reduces behind the backward pass, with its copies."""
    return drawn(
        """
        gpu   : kkbbmbbbbt kkbbmbbbbt x
        gpu 20:      gggg       gggg
        op    :     m    t     m    t
        bwd   :   BBBBBBB    BBBBBBB
        opt   :                       O
        """,
        repeat=STEPS,
        kernels=MODEL,
        ops={"m": "torch::distributed::reducer::mul_out", "t": "torch.distributed.ddp.reducer::copy_bucket_to_grad"},
        comms={"g": Collective("all_reduce", 64 << 20, 2, "default_pg")},
    )


def repeated(measures: Measures) -> Bool:
    found: Bool = measures.exchange.waste == Waste.REPEATED
    assert int(found.sum()) == measures.step_count > 0
    return found


def names_of(measures: Measures, rows: Bool) -> list[str]:
    device = measures.trace.device
    return [measures.trace.names[device.name[row]] for row in np.flatnonzero(rows)]


def test_copies_into_buckets_and_back_belong_to_the_collective_they_surround() -> None:
    measures = Measures(accumulating())
    copies = packing(measures, repeated(measures))
    assert sorted(set(names_of(measures, copies))) == ["Memcpy DtoD (Device -> Device)", "mul"]
    assert int(copies.sum()) == 2 * measures.step_count
    starts = measures.trace.device.start_ns[copies]
    begins = measures.trace.device.start_ns[measures.communication.row[repeated(measures)]]
    assert (np.abs(starts[:, None] - begins[None, :]).min(axis=1) <= 4 * MS).all()


def test_compute_beside_a_collective_loses_part_of_its_rate_and_compute_after_it_none() -> None:
    measures = Measures(accumulating())
    rows = repeated(measures)
    left = slowed(measures, rows, packing(measures, rows))
    beside = left < 1
    assert int(beside.sum()) == measures.step_count
    assert left[beside] == pytest.approx(1 - BESIDE)
    assert set(names_of(measures, beside)) == {"gemm"}


def test_what_a_collective_holds_of_the_device_is_read_where_it_was_recorded() -> None:
    trace = accumulating()
    blocks = np.full(len(trace.device), 24 / 132, np.float32)
    measures = Measures(replace(trace, device=replace(trace.device, blocks_per_sm=blocks)))
    assert 0.2 < held_share(measures)[0] < 0.29
    assert held_share(Measures(trace))[0] == BESIDE


def test_the_host_gets_back_what_it_takes_to_pack() -> None:
    measures = Measures(accumulating())
    issued = issuing(measures, repeated(measures))
    assert issued.total_ns == 2 * MS * len(np.flatnonzero(repeated(measures)))


def test_a_hidden_collective_that_nobody_needs_gives_back_its_copies_and_what_it_takes_from_compute() -> None:
    measures = Measures(accumulating())
    gone = without_collectives(measures, repeated(measures))
    assert gone.exposed.total_ns == 0
    assert gone.packing_ns == 2 * MS * measures.step_count
    assert gone.slowing_ns == BESIDE * 4 * MS * measures.step_count
    assert gone.gain_ns == pytest.approx(3 * MS * measures.step_count, rel=0.02)
    (claim,) = RULES["syncing-every-microstep"].check(measures)
    assert isinstance(claim, Claim)
    assert claim.recoverable_ns == gone.gain_ns


def test_nothing_is_gained_where_nothing_is_needless() -> None:
    measures = Measures(accumulating())
    none = without_collectives(measures, np.zeros(len(measures.communication), np.bool_))
    assert (none.gain_ns, none.packing_ns, none.slowing_ns, len(none.claims)) == (0, 0, 0, 0)


def test_parameters_kept_spare_the_copies_around_their_gathering_and_no_others() -> None:
    trace = drawn(
        """
        gpu   :     okk b   obbbb r    x
        gpu 9 : ii       ii
        gpu 20:   aa       A       ss
        op    : ii  o    ii o     r
        bwd   :        BBBBBBBBBBBBBB
        opt   :                        O
        """,
        repeat=STEPS,
        kernels=MODEL | {"i": "copy in", "o": "copy out", "r": "chunk"},
        ops={"i": "fsdp::all_gather_copy_in", "o": "fsdp::split_with_sizes_copy", "r": "fsdp::chunk_cat"},
        comms={
            "a": Collective("all_gather", 64 << 20, 2, "mesh_fsdp"),
            "A": Collective("all_gather", 64 << 20, 2, "mesh_fsdp"),
            "s": Collective("reduce_scatter", 64 << 20, 2, "mesh_fsdp"),
        },
    )
    measures = Measures(trace)
    rows = measures.exchange.waste == Waste.REGATHERED
    assert int(rows.sum()) == measures.step_count > 0
    copies = packing(measures, rows)
    assert names_of(measures, copies) == ["copy in", "copy out"] * measures.step_count
    again = measures.communication.start_ns[rows]
    assert (measures.trace.device.end_ns[copies][::2] <= again).all()
    assert (measures.trace.device.start_ns[copies][1::2] > again).all()
