"""One rank's counted steps as tables and a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.measure import Measures
from diagnose.measure.profile.counter_series import counter_series
from diagnose.measure.profile.kernel_rows import kernel_rows
from diagnose.measure.profile.operator_rows import operator_rows
from diagnose.measure.profile.sampled_calls import sampled_calls
from diagnose.measure.profile.step_lanes import step_timeline
from diagnose.model import Diagnosis, Roof, StepProfile
from diagnose.trace import Trace


def profile_of(measures: Measures) -> StepProfile:
    """Return the contents of a rank's counted steps."""
    return StepProfile(
        rank=measures.trace.rank,
        step_count=measures.step_count,
        total_ns=measures.total_ns,
        kernels=kernel_rows(measures),
        operators=operator_rows(measures),
        timeline=step_timeline(measures),
        roof=_roof(measures),
        calls=sampled_calls(measures.trace),
        counters=counter_series(measures.trace),
    )


def _roof(measures: Measures) -> Roof | None:
    ceilings = measures.ceilings
    return Roof(dict(ceilings.flops_per_s), ceilings.bytes_per_s, ceilings.source) if ceilings else None


def slowest_profile(traces: Sequence[Trace], diagnosis: Diagnosis) -> StepProfile | None:
    """Return the profile of the rank whose steps are longest by the diagnosis; None where no steps were recorded."""
    counted = [one for one in diagnosis.per_rank if one.steps.count]
    if not counted:
        return None
    slowest = max(counted, key=lambda one: one.steps.total_ns / one.steps.count)
    trace = next((one for one in traces if (one.rank, one.source) == (slowest.rank, slowest.source)), None)
    return profile_of(Measures(trace)) if trace is not None else None
