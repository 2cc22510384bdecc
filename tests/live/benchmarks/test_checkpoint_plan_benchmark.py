"""The search beside planned checkpointing: every k is looked at, few are timed, and all of these in the same rounds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from watching import LIMIT_S

from diagnose.memory import Block, Chain, Plan

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
            patch.setenv(name, "")  # what the benchmark sets for itself stays with it
        spec = importlib.util.spec_from_file_location("checkpoint_plan", BENCHMARKS / "checkpoint_plan.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "checkpoint_plan", module)
        spec.loader.exec_module(module)
        return module


def a_chain(blocks: int = 8) -> Chain:
    """Blocks of 100 bytes each, of which 10 are their outputs; 50 are held beside them."""
    held = [50 + 100 * (at + 1) for at in range(blocks)]
    return Chain(tuple(Block(100, 10, 1000, bytes_, bytes_) for bytes_ in held), held[-1])


def peaks(chain: Chain) -> list[int]:
    return [chain.peak_bytes(range(k)) for k in range(len(chain.blocks) + 1)]


def test_the_fewest_that_fit_are_found_among_all_k_and_the_plan_is_no_worse(bench: ModuleType) -> None:
    chain = a_chain()
    for cap in (0.6, 0.4, 0.3):
        asked = bench.plan_for(cap, chain, peaks(chain), 0)
        fits = [peak <= cap * 850 for peak in peaks(chain)]
        assert asked.fewest == fits.index(True) and not any(fits[: asked.fewest])
        assert asked.plan.again == tuple(range(asked.fewest))


def test_room_left_for_fragments_is_a_plan_of_more_blocks_than_the_fewest_that_fit(bench: ModuleType) -> None:
    chain = a_chain()
    asked = bench.plan_for(0.6, chain, peaks(chain), 60)
    assert len(asked.plan.again) > asked.fewest


def test_a_cap_that_nothing_fits_has_neither(bench: ModuleType) -> None:
    chain = a_chain()
    asked = bench.plan_for(0.01, chain, peaks(chain), 0)
    assert asked.plan is None and asked.fewest is None
    assert "no plan fits" in bench.line_of(bench.compared(asked, {}, peaks(chain), None))


def test_the_plan_its_neighbours_nothing_and_everything_have_turns_and_each_once(bench: ModuleType) -> None:
    whole = bench.whole_blocks
    asked = [bench.Asked(0.6, 500, Plan((0, 1, 2, 3), 480, 4000), 3)]
    choices = bench.worth_a_turn(asked, 8)
    wanted = {whole(()), whole(range(8)), whole(range(3)), whole(range(4)), whole(range(5)), whole((1, 3, 5, 7))}
    assert set(choices) == wanted and len(choices) == len(wanted)


@pytest.mark.parametrize(("k", "count"), [(1, 8), (4, 8), (7, 8), (13, 24), (24, 24), (0, 5)])
def test_spread_blocks_are_as_many_and_none_twice(bench: ModuleType, k: int, count: int) -> None:
    again = bench.spread(k, count).again
    assert len(set(again)) == k and all(0 <= at < count for at in again)


def test_what_a_plan_is_behind_is_read_within_rounds(bench: ModuleType) -> None:
    """A drift that meets both leaves their ratio as it is."""
    slow = tuple(100.0 + 50 * at for at in range(9))
    plan, other = bench.whole_blocks((0,)), bench.whole_blocks(())
    low, middle, high = bench.behind(
        bench.Turns(plan, tuple(1.02 * one for one in slow), 0), bench.Turns(other, slow, 0)
    )
    assert low == pytest.approx(0.02) and middle == pytest.approx(0.02) and high == pytest.approx(0.02)


def test_the_interval_covers_the_median_and_leaves_out_the_ends_of_many_rounds(bench: ModuleType) -> None:
    one = bench.Turns(bench.whole_blocks((0,)), tuple(float(at) for at in range(1, 12)), 0)
    other = bench.Turns(bench.whole_blocks(()), (1.0,) * 11, 0)
    assert bench.behind(one, other) == (1.0, 5.0, 9.0)
    few = bench.Turns(one.plan, (1.0, 2.0, 3.0), 0)
    assert bench.behind(few, bench.Turns(other.plan, (1.0,) * 3, 0)) == (0.0, 1.0, 2.0)


def test_at_toy_size_it_ends_with_a_line_for_each_plan(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = [sys.executable, str(BENCHMARKS / "checkpoint_plan.py"), "--tiny", "--device", "cpu", "--seconds", "1"]
    done = subprocess.run(
        [*script, "--out", str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "checkpoint_plan.json").read_text())
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("cap ")] == [
        f"cap {row['cap']:.0%}" for row in record["rows"]
    ]
    assert {row["cap"] for row in record["rows"]} == {0.6, 0.4, 0.25}
    assert all(row["same_gradients"] for row in record["rows"])
    assert len({len(turns["steps_ms"]) for turns in record["turns"]}) == 1, "as many turns for each"
    assert len(record["peaks_bytes_of_first_k"]) == 7, "all k, nothing and everything among them"
