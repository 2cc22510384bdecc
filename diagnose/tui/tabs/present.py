"""Which tabs there are: those that have something to say."""

from __future__ import annotations

from diagnose.report.wording.cannot_tell import unsure
from diagnose.session import State
from diagnose.tui.tabs.diff import shown_diff
from diagnose.tui.tabs.ranks_tab import rank_numbers

TABS = {
    "overview": "Overview",
    "findings": "Findings",
    "timeline": "Timeline",
    "kernels": "Kernels",
    "operators": "Operators",
    "memory": "Memory",
    "ranks": "Ranks",
    "fixes": "Fixes",
    "diff": "Diff",
    "output": "Output",
}
SHORT = {
    "overview": "Over",
    "findings": "Find",
    "timeline": "Time",
    "kernels": "Kern",
    "operators": "Ops",
    "memory": "Mem",
    "fixes": "Fix",
    "output": "Out",
}


def present(state: State) -> list[str]:
    """The tabs in their order. Of a run that goes on, those that fill as it does are there from the start."""
    profile, diagnosis = state.profile, state.diagnosis
    command = state.started.command if state.started else ""
    goes_on = state.started is not None and state.ended is None
    there = {
        "overview": True,
        "findings": goes_on or (diagnosis is not None and bool(diagnosis.findings or unsure(state))),
        "timeline": profile is not None and profile.timeline is not None and bool(profile.timeline.lanes),
        "kernels": profile is not None and bool(profile.kernels),
        "operators": profile is not None and bool(profile.operators),
        "ranks": bool(rank_numbers(state)),
        "memory": diagnosis is not None and diagnosis.memory is not None,
        "fixes": (goes_on and command == "fix") or bool(state.trials or state.verdicts),
        "diff": bool(shown_diff(state)[0]),
        "output": bool(state.output) or (goes_on and command in ("run", "fix", "probe")),
    }
    return [name for name in TABS if there[name]]
