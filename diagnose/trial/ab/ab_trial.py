"""The A/B trial: two arms against each other, blocks in ABBA order over generations of fresh processes.

Knows nothing of processes: an arm is anything that can be made ready, run a block, trace a window and be closed, so
that the order of turns is tested with arms whose clocks are made up. What a trial does after what is one type,
`Stage`; a function for each stage does its work and says which stage is next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from diagnose.trial.ab.aa_control import MOST_OF_BUDGET
from diagnose.trial.ab.arm_protocol import ArmProtocol, Starter
from diagnose.trial.ab.live_arms import LiveArms, SideFailure
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison, Ending
from diagnose.trial.ab.trial_state import (
    FOLLOWS,
    ABTrial,
    Stage,
    TrialState,
    add_pair,
    is_over,
    run_block,
    trace_missing,
    trace_side,
    wait_until_ready,
)
from diagnose.trial.process.arm import Block, Trouble
from diagnose.trial.process.capacity import fits_twice
from diagnose.trial.schedule import LONG_STEP_NS
from diagnose.verdict import LEAST_PAIRS

_MOST_OF_REST = 2
"""More processes for what they left undecided may take one part in so many of the time that is left: the rest is for
gates, and for other fixes. Chosen, not measured."""
_ALTERNATING = 1_000
"""The number of the first generation of arms that alternate: apart from those that took turns, should memory have run
out only after some of those."""


def compare(trial: ABTrial, original: Starter, patched: Starter) -> Comparison:
    """Compare the two. Never raises ArmFailed: what went wrong is in the answer."""
    with closing(LiveArms((original, patched), trial.deadline, trial.usual_start_ns)) as arms:
        found = Comparison(traces=(list(trial.window), []), apart=trial.apart)
        state = TrialState(trial, arms, found, trial.fits)
        stage = _next_generation(state)
        while stage is not Stage.ENDED:
            after = _after(stage, state)
            assert after in FOLLOWS[stage], f"{after} after {stage}"
            stage = after
    found.sum_up()
    return found


def _next_generation(state: TrialState) -> Stage:
    state.generation += 1
    state.pairs_before, state.again, state.sides = len(state.found.pairs), False, None
    state.began_ns = state.trial.deadline.clock()
    return Stage.ALTERNATING if state.fits is False else Stage.STARTING


def _after(stage: Stage, state: TrialState) -> Stage:
    """Do what a stage stands for; the stage that is next."""
    try:
        return _WORK[stage](state)
    except SideFailure as failure:
        _note(state, failure)
        state.arms.drop_early()
        return Stage.CLOSING


def _start(state: TrialState) -> Stage:
    """Let fresh processes warm up, started in swapped order every other time."""
    order = (ORIGINAL, PATCHED) if state.generation % 2 == 0 else (PATCHED, ORIGINAL)
    arms = state.arms.take_early()
    if arms:
        state.found.ahead = True
    else:
        arms = _start_both(state, order)
    if len(arms) < len(order):
        if state.fits is not False or ORIGINAL not in arms:
            return Stage.CLOSING
        state.resting = arms[ORIGINAL]  # it runs the first block
        return Stage.ALTERNATING
    state.sides = arms[ORIGINAL], arms[PATCHED]
    return Stage.SETTLING


def _start_both(state: TrialState, order: tuple[int, int]) -> dict[int, ArmProtocol]:
    """Both arms after their warm-up, resting; only the first where they turn out not to fit side by side."""
    trial, found = state.trial, state.found
    arms: dict[int, ArmProtocol] = {}
    if state.fits and not trial.apart:
        arms = {side: state.arms.start(side) for side in order}
        if not found.pairs:
            if not trial.compiles:
                _start_next(state, order)
            trial.beside()
    for side in order:
        if side not in arms:
            arms[side] = state.arms.start(side)
        ready = wait_until_ready(state, side, arms[side])
        if side == ORIGINAL:
            found.memory, found.step_ns = ready.memory, ready.step_ns
        if state.fits is None:
            state.fits = fits_twice(ready.memory)
            if state.fits is False:
                return arms
    if state.fits and trial.compiles and not found.pairs:
        _start_next(state, order)  # what the first has compiled is there for the others
    state.fits = True
    try:
        for side, arm in state.arms.early.items():
            wait_until_ready(state, side, arm)
    except SideFailure:  # whatever it was: it starts again when it is its turn
        state.crowded = state.again = True
        state.arms.drop_early()
    trial.rest()
    return arms


def _start_next(state: TrialState, order: tuple[int, int]) -> None:
    """Start the next generation, where there is room."""
    if state.starts_early:
        state.arms.start_early(order[::-1])


def _settle(state: TrialState) -> Stage:
    """One unmeasured block each, undisturbed by the other's start; the original's sets the length of blocks.

    Where steps are long, that is what it is for: the step that heads each block is enough to recover.
    """
    found, schedule = state.found, state.trial.schedule
    for side, arm in enumerate(_sides(state)):
        if found.steps and found.step_ns >= LONG_STEP_NS:
            break
        usual = schedule.block_steps(found.step_ns) if found.step_ns > 0 else schedule.least_steps
        block = run_block(state, side, arm, found.steps or min(schedule.least_steps, usual))
        if not found.steps:
            found.step_ns = round(block.mean_ns)
            found.steps = max(state.trial.least_steps, schedule.block_steps(found.step_ns))
    return Stage.TURNS


def _take_turns(state: TrialState) -> Stage:
    """Pairs of blocks, until they say enough or this generation has as many as it is asked for."""
    trial, found, schedule, stopping = state.trial, state.found, state.trial.schedule, state.trial.stopping
    arms = _sides(state)
    if found.ended_after is not None:
        trace_missing(state, arms)  # a program that is known to end early would end before a window after its turns
    long = found.step_ns >= LONG_STEP_NS and not trial.reassures
    screened = schedule.screened_pairs(found.step_ns if long else 0)
    left = schedule.generations - found.generations
    last = left <= 1
    most = max(schedule.pairs_per_generation, schedule.pairs - len(found.pairs) if long or last else 0)
    patience = state.trial.patience.part(left)
    turn = 0
    while turn < most and not is_over(state):
        forward = len(found.pairs) % 2 == 0
        order = (ORIGINAL, PATCHED) if forward else (PATCHED, ORIGINAL)
        add_pair(state, state.generation, {side: run_block(state, side, arms[side], found.steps) for side in order})
        if trial.skipped():
            continue  # which ends it, whatever these pairs would have shown
        turn = turn + 1 if not _lengthen(state) else 0
        if turn >= screened and patience.passed:
            break
        asked = turn >= screened and (turn - screened) % schedule.sure_every == 0
        if asked and found.generations == 1 and stopping.sure(found.pairs):
            found.end(Ending.SURE)
            break
        if turn != screened:
            continue
        if long and not last and stopping.may_be_sure(found.pairs):
            screened = LEAST_PAIRS  # a few more take less time than other processes
        elif stopping.settled(found.pairs) or (long and not last):
            if trial.reassures:
                found.end(Ending.REASSURED)
            break  # to the next generation, if this is not the last
        elif stopping.fruitless(found.pairs):
            if last:
                found.end(Ending.HOPELESS)
            break
    return Stage.WINDOWS


def _take_windows(state: TrialState) -> Stage:
    trace_missing(state, _sides(state))
    return Stage.CLOSING


def _alternate(state: TrialState) -> Stage:
    """Where both do not fit: one process after the other, warmed up, runs as many blocks as a generation has pairs.

    A process ends with its blocks, but while every pair shows a saving beyond the luck of processes, the second of a
    generation also runs the first blocks of the next. The trial ends with the first generation after which the answer
    is clear; from the first that may be that one, windows are taken, each as the last thing that a process does.
    """
    found, stopping, each = state.found, state.trial.stopping, state.trial.schedule.alternating_pairs
    found.alternated = True
    for generation in range(max(LEAST_PAIRS, state.trial.schedule.pairs // 2) // each):
        window = state.trial.trace and len(found.pairs) + each >= LEAST_PAIRS
        blocks: dict[int, list[Block]] = {}
        for side in (ORIGINAL, PATCHED) if generation % 2 == 0 else (PATCHED, ORIGINAL):
            if is_over(state) or (not blocks and len(found.pairs) >= LEAST_PAIRS and state.trial.patience.passed):
                return Stage.CLOSING
            if state.resting is None:
                state.arms.end_generation()
            arm, state.resting = state.resting or _start_alone(state, side), None
            blocks[side] = _blocks_alone(state, side, arm, window=window)
        for at in range(each):
            add_pair(state, _ALTERNATING + generation, {side: those[at] for side, those in blocks.items()})
        if stopping.settled(found.pairs):
            break
        state.resting = arm if stopping.may_be_sure(found.pairs) and not window else None
    return Stage.CLOSING


def _start_alone(state: TrialState, side: int) -> ArmProtocol:
    """A process of one side after its warm-up, with none beside it."""
    found, arm = state.found, state.arms.start(side)
    ready = wait_until_ready(state, side, arm)
    if side == ORIGINAL and found.memory is None:
        found.memory = ready.memory
    found.step_ns = found.step_ns or ready.step_ns
    return arm


def _blocks_alone(state: TrialState, side: int, arm: ArmProtocol, *, window: bool) -> list[Block]:
    found = state.found
    if not found.steps:
        found.steps = max(state.trial.least_steps, state.trial.schedule.block_steps(found.step_ns))
    blocks = [run_block(state, side, arm, found.steps) for _ in range(state.trial.schedule.alternating_pairs)]
    if window and not found.traces[side]:
        trace_side(state, side, arm)
    return blocks


def _close(state: TrialState) -> Stage:
    """End the processes of a generation; another one is next unless there is enough, or no more to be had."""
    trial, found, schedule = state.trial, state.found, state.trial.schedule
    state.arms.end_generation()
    pairs = found.pairs
    enough = len(pairs) >= schedule.pairs or state.trial.patience.passed or trial.stopping.settled(pairs)
    if found.generations >= schedule.generations and enough and not _may_yet_be_shown(state):
        found.end(Ending.MEASURED)
    if is_over(state):
        return Stage.ENDED
    most = schedule.generations + schedule.extra_generations
    fruitless = len(pairs) == state.pairs_before and not state.again and state.fits is not False
    if found.alternated or _is_dear(state) or (fruitless and not _shrink(state)) or state.generation + 1 == most:
        found.end(Ending.MEASURED)
        return Stage.ENDED
    return _next_generation(state)


_WORK: Mapping[Stage, Callable[[TrialState], Stage]] = {
    Stage.STARTING: _start,
    Stage.SETTLING: _settle,
    Stage.TURNS: _take_turns,
    Stage.WINDOWS: _take_windows,
    Stage.ALTERNATING: _alternate,
    Stage.CLOSING: _close,
}


def _sides(state: TrialState) -> tuple[ArmProtocol, ArmProtocol]:
    assert state.sides is not None  # `Stage.STARTING` comes first
    return state.sides


def _is_dear(state: TrialState) -> bool:
    """Whether another generation of a control would take more of a budget than it is worth to those after it."""
    left_ns = state.trial.deadline.left_ns
    if left_ns is None or state.arms.early or not state.trial.control or len(state.found.pairs) < LEAST_PAIRS:
        return False
    return MOST_OF_BUDGET * (state.trial.deadline.clock() - state.began_ns) > left_ns


def _may_yet_be_shown(state: TrialState) -> bool:
    """Ask once for as many pairs again, where those so far say that a fix saves enough, but not for certain."""
    trial, found = state.trial, state.found
    whole = found.ending is None and found.ended_after is None and not (found.alternated or trial.patience.passed)
    if not whole or found.looks > 1 or not trial.stopping.undecided(found.pairs):
        return False
    needed_ns, left_ns = trial.schedule.generations * (trial.deadline.clock() - state.began_ns), trial.deadline.left_ns
    if left_ns is not None and _MOST_OF_REST * needed_ns > left_ns:
        return False
    state.trial, found.looks = replace(trial, schedule=trial.schedule.again()), 2
    return True


def _lengthen(state: TrialState) -> bool:
    """Begin anew with longer blocks, if these do not hold what recurs in the original, and there is time for it;
    not after a generation, nor once the program was seen to end before it has many blocks."""
    trial, found = state.trial, state.found
    if found.generations > 1 or found.ended_after is not None:
        return False
    steps = state.seen.longer_than(found.steps, trial.schedule.longest_ns(trial.deadline.left_ns))
    if steps:
        found.begin_anew(steps)
    return steps > 0


def _shrink(state: TrialState) -> bool:
    """Shorten the blocks, if they can be, after a generation without a pair."""
    found, least = state.found, state.trial.schedule.least_steps
    if found.steps <= least:
        return False
    found.steps, found.held_steps = least, 0
    return True


def _note(state: TrialState, failure: SideFailure) -> None:
    """An early end only closes the generation; a lack of memory beside the other arm is tried again alone."""
    trial, found = state.trial, state.found
    trouble, crowd = failure.reason.trouble, failure.crowd(control=trial.control)
    if trouble is Trouble.ENDED:
        found.ended_after = failure.reason.steps
    elif crowd is not None and (trial.clear(crowd) or state.arms.early):
        state.again = state.crowded = True
    elif trouble is Trouble.OUT_OF_MEMORY and not (found.alternated or trial.mortal):
        state.fits = False
        found.crowded = True
    elif trouble is Trouble.HUNG and (trial.deadline.passed or failure.cut_short):
        found.end(Ending.OUT_OF_TIME)
    elif trouble is Trouble.HUNG and failure.starting and not state.hung and not found.alternated:
        state.again = state.hung = True
    else:
        found.fail(failure.side, failure.reason)
