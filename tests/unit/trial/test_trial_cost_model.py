"""How long the next trial is expected to take, told by those before it."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model import Gate
from diagnose.trial.ab.result import Comparison
from diagnose.trial.planning.cost_model import FIRST_COMPILE_NS, LEAST_COMPILE_NS, WARM_SHARE, WINDOW_NS, CostModel
from diagnose.trial.schedule import Schedule
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.verdict import LEAST_PAIRS, Pair

SCHEDULE = Schedule(pairs=8, generations=2, block_ns=200 * NS_PER_MS, usual_steps=8, drop_steps=2)
BLOCK_NS = 12 * 20 * NS_PER_MS  # 10 steps fill 200 ms, and 2 are dropped
WINDOWS_NS = 2 * ((4 + 2) * 20 * NS_PER_MS + WINDOW_NS)
TURNS_NS = 2 * (5 * NS_PER_S + 10 * BLOCK_NS)


def comparison(original_s: float = 5, patched_s: float = 5, pairs: int = 8) -> Comparison:
    halves = [Pair(number % 2, 2e7, 2e7) for number in range(pairs)]
    found = Comparison(halves, generations=2, step_ns=20 * NS_PER_MS)
    found.starts_ns[0].append(round(original_s * NS_PER_S))
    found.starts_ns[1].append(round(patched_s * NS_PER_S))
    return found


def costs(took_ns: int = TURNS_NS) -> CostModel:
    known = CostModel(SCHEDULE)
    known.saw(comparison(), took_ns)
    return known


def test_nothing_is_expected_of_a_session_that_has_measured_nothing() -> None:
    fresh = CostModel(SCHEDULE)
    assert (fresh.trial_ns(4, compiles=True), fresh.check_ns(), fresh.final_ns()) == (0, 0, 0)


def test_a_trial_takes_its_starts_and_its_blocks_and_a_gate_what_the_patched_program_asks_for() -> None:
    known = costs()
    assert known.check_ns() == TURNS_NS
    assert known.trial_ns(1) == TURNS_NS + WINDOWS_NS
    assert known.trial_ns(1, windows=1) == TURNS_NS + WINDOWS_NS // 2  # the program that it is put on has had one
    known.saw_gate(Gate.ROUNDING, 16 * NS_PER_S, 4)  # with the original's captures, which are there the next time
    known.saw_gate(Gate.ROUNDING, 0, 0)  # all was there already: that tells nothing of the next
    assert known.gates_ns == {Gate.ROUNDING: 4 * NS_PER_S}


def test_every_further_setting_costs_a_start_and_a_few_pairs() -> None:
    known = costs()
    one_ns = 5 * NS_PER_S + 2 * (1 + SCHEDULE.sweep_pairs) * BLOCK_NS
    assert known.trial_ns(4) - known.trial_ns(1) == 3 * one_ns


def test_compiling_is_guessed_until_it_was_seen() -> None:
    known = costs()
    assert known.trial_ns(1, compiles=True) - known.trial_ns(1) == FIRST_COMPILE_NS
    known.saw(comparison(patched_s=25), TURNS_NS, compiles=True)
    assert known.trial_ns(1, compiles=True) - known.trial_ns(1) == 20 * NS_PER_S


def test_at_best_compiling_is_short_until_it_was_seen() -> None:
    known = costs()
    assert known.trial_ns(1, compiles=True, at_best=True) - known.trial_ns(1) == LEAST_COMPILE_NS
    known.saw(comparison(patched_s=25), TURNS_NS, compiles=True)
    assert known.trial_ns(1, compiles=True, at_best=True) == known.trial_ns(1, compiles=True)


def test_a_patched_program_that_is_faster_has_shorter_blocks() -> None:
    known = costs()
    blocks_ns = TURNS_NS - 2 * 5 * NS_PER_S
    assert known.check_ns(0.1) == TURNS_NS - blocks_ns // 20
    assert known.trial_ns(1) - known.trial_ns(1, saved=0.1) == blocks_ns // 20


def test_a_large_saving_is_sure_after_the_first_processes() -> None:
    of_one_generation_ns = 5 * NS_PER_S + (2 + 2 * LEAST_PAIRS) * BLOCK_NS
    assert costs().check_ns(0.5) == of_one_generation_ns - (2 + 2 * LEAST_PAIRS) * BLOCK_NS // 4


def test_the_first_pair_of_what_compiles_comes_after_it_has_compiled() -> None:
    known = costs()
    assert known.least_ns(compiles=True) - known.least_ns() == LEAST_COMPILE_NS


def test_what_compiles_no_less_at_every_start_has_no_first_one_that_takes_longer() -> None:
    known = CostModel(SCHEDULE)
    known.saw(comparison(original_s=12, patched_s=12), TURNS_NS, compiles=True)
    assert known.compiling_ns() < NS_PER_MS


def test_a_window_takes_what_the_last_ones_took() -> None:
    steps_ns = (4 + 2) * 20 * NS_PER_MS
    watched = CostModel(SCHEDULE, window_ns=NS_PER_S)
    watched.saw(comparison(), TURNS_NS)
    assert watched.trial_ns(1) - watched.check_ns() == 2 * (steps_ns + NS_PER_S)
    traced = comparison()
    traced.windows_taken, traced.windows_ns = 1, steps_ns + 3 * NS_PER_S
    watched.saw(traced, TURNS_NS)
    assert watched.trial_ns(1) - watched.check_ns() == 2 * (steps_ns + 3 * NS_PER_S)


def test_of_a_program_that_compiles_itself_the_first_start_shows_what_that_takes() -> None:
    known, found = CostModel(SCHEDULE), comparison(original_s=25, patched_s=24)
    for starts in found.starts_ns:
        starts.append(7 * NS_PER_S)  # the next generation finds it compiled
    known.saw(found, TURNS_NS, compiles=True)
    assert known.start_ns == 7 * NS_PER_S
    assert known.trial_ns(1, compiles=True) - known.trial_ns(1) == 18 * NS_PER_S


def test_what_a_start_takes_that_finds_all_compiled_is_guessed_until_it_was_seen() -> None:
    known, found = costs(), comparison(patched_s=25)
    assert known.warm_ns == round(WARM_SHARE * FIRST_COMPILE_NS)
    known.saw(found, TURNS_NS, compiles=True)
    assert known.warm_ns == round(WARM_SHARE * 20 * NS_PER_S)
    found.starts_ns[1].append(8 * NS_PER_S)
    known.saw(found, TURNS_NS, compiles=True)
    assert known.warm_ns == 3 * NS_PER_S


def test_a_comparison_that_took_longer_than_its_parts_makes_the_next_estimate_longer() -> None:
    assert costs(2 * TURNS_NS).check_ns() == 2 * TURNS_NS
    assert costs(TURNS_NS // 2).check_ns() == TURNS_NS
    traced = comparison()
    traced.windows_taken, traced.windows_ns = 2, WINDOWS_NS
    known = CostModel(SCHEDULE)
    known.saw(traced, TURNS_NS + WINDOWS_NS)
    assert known.check_ns() == TURNS_NS
    stopped = CostModel(SCHEDULE)
    stopped.saw(comparison(pairs=4), 10 * TURNS_NS)
    assert stopped.check_ns() == TURNS_NS


def test_programs_that_alternate_start_for_every_two_blocks() -> None:
    known = costs()
    alternating = comparison(pairs=4)
    alternating.alternated = True
    known.saw(alternating, TURNS_NS)
    assert known.check_ns() == 4 * (5 * NS_PER_S + 2 * BLOCK_NS)
    assert known.least_ns() == 2 * costs().least_ns()
    assert known.check_ns(saved=0.5) == 3 * 5 * NS_PER_S + 8 * round(0.75 * BLOCK_NS)  # processes are shared


def test_the_last_runs_are_whole_processes_and_the_numbers_once_more() -> None:
    one_ns = (5 * 10 + 2) * 20 * NS_PER_MS
    assert costs().final_ns() == 10 * NS_PER_S + 2 * (5 * NS_PER_S + 2 * one_ns)


def test_numbers_that_were_held_cost_nothing_in_the_end() -> None:
    known = costs()
    known.saw_gate(Gate.TRAINING, 60 * NS_PER_S, 4)
    assert known.final_ns() == known.last_runs_ns() + 60 * NS_PER_S
    assert known.final_ns(held=True) == known.last_runs_ns()
    assert known.last_runs_ns(1) == known.last_runs_ns() // SCHEDULE.final_runs
    assert known.final_ns(held=True, runs=1) == known.last_runs_ns(1)


def test_whole_runs_that_were_made_are_made_again_of_another_stack() -> None:
    known = costs()
    assert known.final_ns(rerun=True) == known.final_ns()
    known.saw_whole_runs(40 * NS_PER_S)
    assert known.final_ns(rerun=True) == known.final_ns() + 40 * NS_PER_S + known.last_runs_ns() // 2


def test_trials_on_top_of_a_kept_fix_are_as_short_as_its_program() -> None:
    known = costs()
    kept = comparison(patched_s=25)
    kept.pairs = [Pair(pair.generation, 2e7, 5e6) for pair in kept.pairs]
    kept.starts_ns[1].append(7 * NS_PER_S)  # what the first start compiled is there
    known.saw(kept, TURNS_NS, compiles=True)
    known.grew(kept)
    blocks_ns = (SCHEDULE.block_steps(5 * NS_PER_MS) + 2) * 5 * NS_PER_MS
    assert known.check_ns() == 2 * (7 * NS_PER_S + 10 * blocks_ns)
    # The program as found runs once more in the end, a step of each beside the other's.
    assert known.last_runs_ns() == 2 * (7 * NS_PER_S + (5 * 10 + 2) * 25 * NS_PER_MS)


def test_time_for_the_last_run_is_that_of_the_program_that_is_judged() -> None:
    known = costs()
    patched = comparison(patched_s=9)
    known.saw(patched, TURNS_NS)
    later = known.if_kept(patched)
    assert later.start_ns == 9 * NS_PER_S
    assert later.last_runs_ns(1) - known.last_runs_ns(1) == 4 * NS_PER_S
    assert known.start_ns == 5 * NS_PER_S


def test_a_long_schedule_is_expected_to_be_clear_early() -> None:
    known = CostModel(replace(SCHEDULE, pairs=20))
    known.saw(comparison(), TURNS_NS)
    assert known.check_ns() == TURNS_NS


def test_generations_that_start_together_take_one_start() -> None:
    known = CostModel(SCHEDULE)
    together = comparison()
    together.ahead = True
    known.saw(together, TURNS_NS - 5 * NS_PER_S)
    assert known.check_ns() == TURNS_NS - 5 * NS_PER_S


def test_sides_that_start_one_by_one_take_a_start_each() -> None:
    known = CostModel(SCHEDULE)
    known.saw(replace(comparison(), apart=True), TURNS_NS + 2 * 5 * NS_PER_S)
    assert known.check_ns() == TURNS_NS + 2 * 5 * NS_PER_S


def test_the_last_runs_are_as_long_as_steps_of_the_program_as_found_ask_for() -> None:
    """A watched run may say far more than a step takes: it began amid an epoch's end."""
    known = CostModel(SCHEDULE, step_ns=200 * NS_PER_MS)
    assert known.final_steps == 5 * SCHEDULE.block_steps(200 * NS_PER_MS)
    found = comparison()
    known.saw(found, TURNS_NS)
    assert known.final_steps == 5 * 10  # steps of 20 ms in blocks of 200 ms
    known.grew(found)
    known.saw(replace(found, step_ns=2 * NS_PER_MS), TURNS_NS)
    assert known.final_steps == 5 * 10  # the original still takes 20 ms


def test_the_last_runs_hold_what_recurs_every_few_steps() -> None:
    known = costs()
    known.saw(replace(comparison(), held_steps=96), TURNS_NS)
    assert known.final_steps == 96
