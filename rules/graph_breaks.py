"""A compiled function falls into several graphs.

What it finds
    Functions given to torch.compile that Dynamo had to split: at a print or a log message, a branch on the value of a
    tensor, `.item()`, a call that it cannot trace.

Why it costs
    Between two graphs Python runs as if nothing were compiled, and each further graph brings its own guards and its own
    calls, forward and backward. Nothing is fused across a break. Where the device is faster than the host, it waits.

What proves it
    Compiled regions that lie inside others without being called by a graph: Dynamo continues so after a break. Without
    the breaks, the host's time between the graphs of one function is gone and what each further graph does before its
    first operator and after its last one, in both passes; the replay without it says how much shorter the step would
    be, up to the time for which the device waits in these functions. A bound: what fusing across the break would
    give back is not in it.

    Lines and reasons are Dynamo's own on a live run; in a recording with stacks, they are where the functions begin
    that continue. On a live run, a function that Dynamo gave up because it breaks in a loop is told as a hint.

What fixes it
    Taking the line out of the compiled function, or writing it so that it can be traced (`remove-graph-break`).

Thresholds
    None: breaks during which the device does not wait are told without a figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import without_host_ns
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Place,
    Rule,
    Site,
    Symptom,
    drawn,
    format_count,
    format_ns,
    format_times,
)

_RESUME = re.compile(r"^(?P<file>.+)\(\d+\): torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
_CONFIRM = "TORCH_LOGS=graph_breaks names every break with its reason; a run with the line taken out"
_MOST_REASONS = 3  # reasons named in one sentence; chosen, not measured


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time between the graphs of one function."""
    if measures.step_count == 0:
        return
    regions = measures.compiled_regions
    starts = measures.trace.ops.start_ns[regions.rows]
    steps = measures.steps
    inside = (starts >= steps.host_start_ns[0]) & (starts < steps.host_end_ns[-1])
    breaks, calls = int((regions.resumed & inside).sum()), int(inside.sum())
    sites = [site for site in measures.trace.sites if site.kind == "graph_break"]
    if breaks == 0:
        if sites and calls:
            yield _given_up([site for site in sites if site.arguments.get("skipped")] or sites)
        return
    waited = measures.idle_of() - measures.idle_of("input", "compile", "io")
    # Without a device, what the host does between the graphs is the step's own time.
    claims = (waited & regions.split if measures.has_device else regions.between) & measures.counted
    gain = without_host_ns(measures, regions.between, claims)
    count = breaks / measures.step_count
    whole = (calls - breaks) / measures.step_count
    pieces = f"{format_count(whole + count)} graphs instead of {format_count(whole)}"
    yield Claim(
        summary=f"compiled functions break {format_times(count)} per step, into {pieces}: "
        f"{_cost(measures, gain)}{_reasons(sites)}",
        recoverable_ns=gain,
        claims=claims if gain else Intervals.empty(),
        cut=Cut(host=regions.between) if measures.has_device else None,
        confidence=Confidence.BOUND if gain else Confidence.HINT,
        evidence=[
            Evidence("breaks per step", count, "count"),
            Evidence("compiled calls per step", calls / measures.step_count, "count"),
            *_waiting(measures, claims),
            Evidence("host between graphs", (regions.between & measures.counted).total_ns // measures.step_count, "ns"),
        ],
        where=_where(measures, sites),
        confirm=_CONFIRM,
    )


def _cost(measures: Measures, gain: int) -> str:
    if not gain:
        return "the device does not wait between them; what fusing across a break would save is unknown"
    per_step = format_ns(gain / measures.step_count)
    if measures.has_device:
        return f"the device waits {per_step} per step between them"
    return f"the host is between them for {per_step} per step"


def _waiting(measures: Measures, claims: Intervals) -> list[Evidence]:
    if not measures.has_device:
        return []
    return [Evidence("device waits in split functions", claims.total_ns // measures.step_count, "ns")]


def _given_up(sites: list[Site]) -> Claim:
    """Dynamo gave functions up, or the recorded steps did not come to the breaks."""
    return Claim(
        summary=f"torch.compile could not keep a function in one graph at {len(sites)} lines, none of which shows in "
        f"the recorded steps as a split region{_reasons(sites)}",
        confidence=Confidence.HINT,
        evidence=[Evidence("lines at which graphs break", len(sites), "count")],
        where=_places(sites),
        confirm=_CONFIRM,
    )


def _reasons(sites: list[Site]) -> str:
    reasons = list(dict.fromkeys(str(site.arguments.get("reason")) for site in sites if site.arguments.get("reason")))
    more = f" and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return f" ({'; '.join(reasons[:_MOST_REASONS])}{more})" if reasons else ""


def _where(measures: Measures, sites: list[Site]) -> list[Place]:
    """Dynamo's own lines, else where the functions begin that continue after a break, the most time first."""
    if sites:
        return _places(sites)
    trace = measures.trace
    lines: dict[tuple[str, int], Place] = {}
    for name in trace.names:
        match = _RESUME.match(name)
        if match is not None:
            file, line = match["file"], int(match["line"])
            lines[file, line] = Place(file, line, function=match["function"])
    return list(lines.values()) or list(measures.places(measures.compiled_regions.between))


def _places(sites: list[Site]) -> list[Place]:
    ordered = sorted(sites, key=lambda site: not site.owned)
    return [Place.at(site) for site in ordered]


_OPS = {"r": "Torch-Compiled Region: 0/0", "q": "Torch-Compiled Region: 1/0", "g": "CompiledFunction"}
_LINES = (
    Site("graph_break", "model.py", 27, "forward", {"reason": "Failed to trace builtin operator", "skipped": False}),
)

_drawn = partial(drawn, repeat=4, ops=_OPS)
_FIRES = (
    # A message in the middle: the device has finished the first graph when the second one is called.
    _drawn(
        """
        op  : rrrrrrrrrrrrrrr
        op  :  ggg       ggg
        op  :         qqqqqq
        host:   l         l
        gpu :    kkkk      kkkk
        step:                  |
        """,
        sites=_LINES,
    ),
    # On a CPU alone.
    _drawn(
        """
        op  : rrrrrrrrrrrrrrr
        op  :  ggg       ggg
        op  :         qqqqqq
        opt :                O
        """,
        facts=Facts(cpu_count=2),
    ),
)

_SILENT = (
    # Two functions, compiled one by one: nothing is split.
    _drawn("""
        op  : rrrrr     qqqqq
        op  :  ggg       ggg
        host:   l         l
        gpu :    kkkk      kkkk
        step:                  |
    """),
    # An operator inside the graph calls compiled code of its own.
    _drawn("""
        op  : rrrrrrrrrrrrrrr
        op  :  ggggggggggggg
        op  :         qqqqqq
        op  :          ggggg
        host:   l         l
        gpu :    kkkk      kkkk
        step:                  |
    """),
)

RULE = Rule(
    "graph-breaks",
    check,
    fixers=("remove-graph-break",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=9,
    symptom=Symptom.HOST,
)
