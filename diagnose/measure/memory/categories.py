"""The category of each allocation: from the recording where it tells, else from the allocation's life and size.

    taken in      given back                        serves as
    forward       in the forward pass               a temporary
    forward       in or after the backward pass     an activation; logits where the loss asked, or sizes agree
    forward       after the step                    the same, and from the next step on what an earlier step left behind
    outside       (before the forward pass)         an input
    backward      in the backward pass              a temporary, the gradient of logits among them
    backward      later                             a gradient
    optimizer     in the optimizer                  a temporary
    optimizer     later                             optimizer state
    anywhere      (a module was built or moved)     a parameter
    before        never                             by who asked, or its size: for each gradient a parameter, then state
    before        never, asked in a forward pass    what an earlier step left behind
    before        in the optimizer                  optimizer state, which this optimizer makes anew
    before        in the backward pass              an activation
    before        never, nobody noted who asked     by its size: what earlier steps left behind of a forward pass

What is none of these, or has no history that shows it, is `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from diagnose.measure.memory.allocations import Pieces
from diagnose.measure.memory.phases import Phases, TrainingPhase, phase_of_stack
from diagnose.trace import StackFrame, Trace
from diagnose.trace.schema import MISSING, Bool, Int64, MemoryCategory, UInt8

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "logits",
    "inputs",
    "temporaries",
    "left by earlier steps",
    "other",
)
"""The categories in the order in which a training program comes to hold them, what it holds longest first."""
PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, LOGITS, INPUTS, TEMPORARIES, LEFT, OTHER = range(len(CATEGORIES))

_RECORDED: Mapping[MemoryCategory, int] = MappingProxyType(
    {
        MemoryCategory.PARAMETER: PARAMETERS,
        MemoryCategory.GRADIENT: GRADIENTS,
        MemoryCategory.OPTIMIZER_STATE: STATE,
        MemoryCategory.ACTIVATION: ACTIVATIONS,
        MemoryCategory.INPUT: INPUTS,
        MemoryCategory.TEMPORARY: TEMPORARIES,
        MemoryCategory.AUTOGRAD_DETAIL: OTHER,
    }
)
_LASTING: Mapping[TrainingPhase, int] = MappingProxyType(
    {
        TrainingPhase.UNKNOWN: OTHER,
        TrainingPhase.FORWARD: ACTIVATIONS,
        TrainingPhase.BACKWARD: TEMPORARIES,
        TrainingPhase.OPTIMIZER: STATE,
    }
)
_MODULES = "torch/nn/modules/"
_BUILDERS = frozenset({"_apply", "__init__", "reset_parameters"})
_LOSSES = frozenset({"cross_entropy", "log_softmax", "nll_loss", "linear_cross_entropy", "logsumexp"})
_LARGE_BYTES = 1 << 20
"""What a loss asks for below this is no matter, nor is what steps leave behind."""
_MOST_STATES = 2
"""Pieces of optimizer state per parameter of its size that are taken for such: Adam has two."""


def recorded_roles(category: UInt8) -> UInt8:
    """Places in `CATEGORIES` for what a recording says itself; `other` where it says nothing."""
    table = np.full(int(max(MemoryCategory)) + 1, OTHER, np.uint8)
    for known, role in _RECORDED.items():
        table[known] = role
    return table[category]


def roles(trace: Trace, held: Pieces, phases: Phases, logits_bytes: Int64) -> UInt8:
    """Per piece its place in `CATEGORIES`. `logits_bytes` are sizes that logits are known to have."""
    found = recorded_roles(held.category)
    unknown = held.category == MemoryCategory.UNKNOWN
    seen = unknown & (held.taken >= 0)
    before, built = unknown & ~seen, _of_stacks(trace, held, _builds)
    found[before] = _lasting(trace, held)[before]
    if not held.events or not phases.phase.any():
        found[unknown & _logits(trace, held, logits_bytes)] = LOGITS
        found[unknown & built] = PARAMETERS
        found[before & _unnoticed(found, held)] = LEFT
        return found
    born = np.zeros(len(held), np.uint8)
    born[seen] = phases.phase[held.taken[seen]]
    within = _within_phase(held, phases, seen)
    forward, backward, optimizer = (
        seen & (born == phase) for phase in (TrainingPhase.FORWARD, TrainingPhase.BACKWARD, TrainingPhase.OPTIMIZER)
    )
    found[forward] = np.where(within[forward], TEMPORARIES, ACTIVATIONS)
    found[backward] = np.where(within[backward], TEMPORARIES, GRADIENTS)
    found[optimizer] = np.where(within[optimizer], TEMPORARIES, STATE)
    inputs = forward & ~within
    inputs[inputs] = phases.outside[held.taken[inputs]]
    found[inputs] = INPUTS
    passing = np.isin(found, (ACTIVATIONS, TEMPORARIES)) & seen & ~optimizer
    found[passing & _logits(trace, held, logits_bytes)] = LOGITS
    first_end = np.append(np.flatnonzero(np.diff(phases.step)), held.events)[0]
    found[before & np.isin(found, (ACTIVATIONS, LOGITS)) & (held.freed > first_end)] = LEFT
    found[unknown & built] = PARAMETERS
    before, gone = before & (found == OTHER), held.freed < held.events
    died = np.zeros(len(held), np.uint8)
    died[before & gone] = phases.phase[held.freed[before & gone]]
    found[before & (died == TrainingPhase.OPTIMIZER)] = STATE
    found[before & (died == TrainingPhase.BACKWARD)] = ACTIVATIONS
    _tell_by_size(found, held, before & ~gone)
    found[before & ~gone & _unnoticed(found, held)] = LEFT
    return found


def _of_stacks(trace: Trace, held: Pieces, test: Callable[[tuple[StackFrame, ...]], bool]) -> Bool:
    """Per piece whether a test holds for who asked; not where nobody knows."""
    by_stack = np.zeros(len(trace.stacks) + 1, np.bool_)
    for number in np.unique(held.stack[held.stack != MISSING]).tolist():
        by_stack[number] = test(trace.stacks[number])
    return np.asarray(by_stack[held.stack], np.bool_)


def _lasting(trace: Trace, held: Pieces) -> UInt8:
    """Return what pieces serve as that outlived the phase in which they were asked for, as far as who asked tells."""
    by_stack = np.full(len(trace.stacks) + 1, OTHER, np.uint8)
    for number in np.unique(held.stack[held.stack != MISSING]).tolist():
        by_stack[number] = _LASTING[phase_of_stack(trace.stacks[number])]
    return by_stack[held.stack]


def _builds(stack: tuple[StackFrame, ...]) -> bool:
    """Whether a module is built, moved to the device, or initialised."""
    return any(frame.function in _BUILDERS and _MODULES in frame.file.replace("\\", "/") for frame in stack)


def _within_phase(held: Pieces, phases: Phases, seen: Bool) -> Bool:
    """Return which pieces are given back before the phase that they were taken in has ended."""
    change = (phases.phase[1:] != phases.phase[:-1]) | (phases.step[1:] != phases.step[:-1])
    number = np.concatenate(([0], np.cumsum(change)))
    within = np.zeros(len(held), np.bool_)
    ended = seen & (held.freed < held.events)
    within[ended] = number[held.taken[ended]] == number[held.freed[ended]]
    return within


def _is_of_loss(stack: tuple[StackFrame, ...]) -> bool:
    """Whether a loss over classes asks."""
    return any(frame.function in _LOSSES for frame in stack)


def _logits(trace: Trace, held: Pieces, logits_bytes: Int64) -> Bool:
    """Return what a loss asked for, and what is as large as the largest of it, or in half or twice its precision.

    Of the latter only as many from one line as the loss asked for: layers that happen to be of that size are more.
    """
    asked = _of_stacks(trace, held, _is_of_loss) & (held.size_bytes >= _LARGE_BYTES)
    largest = int(held.size_bytes[asked].max(initial=0))
    sizes = np.union1d(logits_bytes, [largest // 2, largest, 2 * largest] if largest else np.empty(0, np.int64))
    alike = np.isin(held.size_bytes, sizes[sizes >= _LARGE_BYTES])
    if asked.any():
        alike &= (held.stack == MISSING) | (_count_of_like(held) <= _count_of_like(held)[asked].max())
    return np.asarray(asked | alike, np.bool_)


def _unnoticed(found: UInt8, held: Pieces) -> Bool:
    """Return what was taken while nobody noted who asks, by its size what a forward pass takes, and nothing of the
    model's.

    Only where the model's own was noted: from then on there were steps, and what they took and is held is left behind.
    """
    passing, model = (held.size_bytes[np.isin(found, of)] for of in ((ACTIVATIONS, LOGITS), (PARAMETERS, GRADIENTS)))
    asked = found[held.stack != MISSING]
    alike = np.isin(held.size_bytes, passing[passing >= _LARGE_BYTES]) & ~np.isin(held.size_bytes, model)
    unknown = (found == OTHER) & (held.stack == MISSING)
    return np.asarray(unknown & alike & bool((asked == PARAMETERS).any()), np.bool_)


def _count_of_like(held: Pieces) -> Int64:
    """Per piece how many of its size the same place of the program asked for."""
    _, group, counts = np.unique(
        np.stack((held.stack.astype(np.int64), held.size_bytes)), axis=1, return_inverse=True, return_counts=True
    )
    return np.asarray(counts[group.reshape(-1)], np.int64)


def _tell_by_size(found: UInt8, held: Pieces, unknown: Bool) -> None:
    """What is held throughout: for each gradient a piece of its size is a parameter, and further ones are its state."""
    gradients = held.size_bytes[found == GRADIENTS]
    sizes, counts = np.unique(gradients, return_counts=True)
    known = {role: held.size_bytes[found == role] for role in (PARAMETERS, STATE)}
    rows = np.flatnonzero(unknown)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        alike = rows[held.size_bytes[rows] == size]
        there = int((known[PARAMETERS] == size).sum())
        parameters = max(min(count, len(alike)) - there, 0)
        found[alike[:parameters]] = PARAMETERS
        states = max(_MOST_STATES * count - int((known[STATE] == size).sum()), 0)
        found[alike[parameters : parameters + states]] = STATE
