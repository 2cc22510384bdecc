"""The map of used parameters that DistributedDataParallel writes and reads, told from hooks and loops of the user's."""

from __future__ import annotations

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.measure.comm.ddp.unused_parameters import used_map
from diagnose.rule import Claim
from diagnose.trace.drawn import drawn

MS = 1_000_000
STEPS = 3
NAMES = {
    "q": "torch.distributed.ddp.reducer::search_unused_parameters",
    "B": "autograd::engine::evaluate_function: MmBackward0",
    "E": "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "A": "torch::autograd::AccumulateGrad",
    "D": "torch.distributed.ddp.reducer::copy_bucket_to_grad",
    "e": "aten::select",
    "f": "aten::fill_",
    "i": "aten::item",
}


def measured(backward: str, *inside: str, main: str = "olqqo", calls: str = "") -> Measures:
    """Steps with a search and a backward pass on a thread of its own, during which the device idles."""
    lanes = [("host", f"{main:<34}lo"), *(("op 1", row) for row in (backward, *inside)), ("host 1", calls)]
    lanes += [("gpu", f"{'  k':<35}k"), ("opt", f"{'':<35}O")]
    text = "\n".join(f"{lane:<6}: {row}" for lane, row in lanes if row)
    return Measures(drawn(text, repeat=STEPS, ops=NAMES, numbered="B"))


def lengths_ms(measures: Measures) -> tuple[float, float]:
    """Time in writing the map and in reading it, per step."""
    found = used_map(measures)
    return found.writes.total_ns / MS / STEPS, found.reads.total_ns / MS / STEPS


PASS = "     B EEEEEEE EEEEEEE "
WRITTEN = "       Aeeff   Aeeff"


def test_an_entry_is_written_after_each_gradient_and_read_when_the_last_is_reduced() -> None:
    measures = measured(f"{PASS}eeiiDDeiDD", WRITTEN)
    assert lengths_ms(measures) == (8, 6)
    (claim,) = plugins.load_rules().rules["unused-parameter-search"].check(measures)
    assert isinstance(claim, Claim)
    idle_ns = (1 + 8 + 6) * MS * measures.step_count  # a kernel takes half of the search
    assert claim.claims.total_ns == claim.recoverable_ns == idle_ns
    told = {one.measure: one.value for one in claim.evidence}
    assert told["idle time in marking each parameter as used, per step"] == 8 * MS
    assert told["idle time in reading the marks, per step"] == 6 * MS


def test_hooks_of_the_users_own_are_told_from_the_reducers() -> None:
    """One behind the accumulation of a gradient runs within it, others come after the reducer's or before."""
    measures = measured(
        "     B EEEEEEEEEEEEE EEEEEEEEEEEEE",
        "       AAAAAeeffeeff AAAAAeeffeeff",
        "        eeff          eeff",
    )
    assert lengths_ms(measures) == (8, 0)


@pytest.mark.parametrize(
    "inside",
    [
        "       AAAAA   AAAAA\nop 1  :         eef     eef",  # within the accumulation
        "       eeffA   eeffA",  # before it
        "       Aeeff   A",  # after one of two gradients
    ],
)
def test_entries_that_others_set_are_none_of_the_map(inside: str) -> None:
    assert lengths_ms(measured(PASS, inside)) == (0, 0)


@pytest.mark.parametrize("read", ["ei", "eieiei"])
def test_fewer_values_than_gradients_or_more_are_none_of_the_map(read: str) -> None:
    assert lengths_ms(measured(f"{PASS}{read}", WRITTEN)) == (8, 0)


def test_values_that_the_loop_reads_are_none_of_the_map() -> None:
    assert lengths_ms(measured(PASS, WRITTEN, main=f"olqqo{'':<19}eieiei"[:-2])) == (8, 0)


def test_values_that_are_waited_for_are_none_of_the_map() -> None:
    """The map lies on the host: none of it is on the device."""
    assert lengths_ms(measured(f"{PASS}eiiieiii", WRITTEN, calls=f"{'':<25}s   s")) == (8, 0)
