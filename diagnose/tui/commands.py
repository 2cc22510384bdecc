"""The commands of the screen besides moving about: one list for keys, palette and help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diagnose.session import State

SEARCHED = ("findings", "kernels", "operators", "output")
"""Tabs that can be searched."""


@dataclass(frozen=True)
class Command:
    """One thing to ask for."""

    name: str
    """`action_<name>` of the application does it."""
    key: str
    label: str
    """One word, for the foot of the screen."""
    about: str
    """What it does, for the help and the palette."""
    shown_key: str = ""
    """What the foot and the help call the key, where that is not its name."""
    offered: Callable[[State, str], bool] = lambda _state, _tab: True
    """Whether the foot of the screen names it, by state and tab. Its key works everywhere."""

    @property
    def shown(self) -> str:
        """The key as people write it."""
        return self.shown_key or self.key


def _with_profile(state: State, tab: str) -> bool:
    timed = state.profile is not None and state.profile.timeline is not None
    return timed and (tab in ("kernels", "operators") or (tab in ("overview", "findings") and _has_findings(state)))


def _has_findings(state: State) -> bool:
    return state.diagnosis is not None and bool(state.diagnosis.findings)


def _in_trial(state: State, _tab: str) -> bool:
    return state.ended is None and bool(state.trials) and state.trials[-1].verdict is None


def _can_fix(state: State, _tab: str) -> bool:
    started, diagnosis = state.started, state.diagnosis
    fixable = diagnosis is not None and any(finding.fixers for finding in diagnosis.findings)
    return started is not None and state.ended is not None and not state.verdicts and fixable


def _has_patch(state: State, _tab: str) -> bool:
    return state.ended is not None and state.patch is not None and bool(state.patch.diff)


def _has_counterpart(state: State, tab: str) -> bool:
    return tab in ("overview", "findings", "fixes") and _has_findings(state) and bool(state.trials or state.verdicts)


def _has_place(state: State, tab: str) -> bool:
    if tab in ("kernels", "operators") and state.profile is not None:
        rows = state.profile.kernels if tab == "kernels" else state.profile.operators
        return any(row.place is not None for row in rows)
    return tab == "findings" and _has_findings(state)


def _can_copy(state: State, tab: str) -> bool:
    return _has_findings(state) if tab in ("overview", "findings") else tab not in ("timeline", "memory", "ranks")


def _can_search(_state: State, tab: str) -> bool:
    return tab in SEARCHED


def _never(_state: State, _tab: str) -> bool:
    return False


COMMANDS = (
    Command("fix", "f", "Fix", "try fixes on copies of this program", offered=_can_fix),
    Command("skip", "x", "Skip", "leave the fix under trial, go on with the next", offered=_in_trial),
    Command("apply", "a", "Apply", "write the measured patch to your files", offered=_has_patch),
    Command("revert", "u", "Revert", "take the patch back, byte for byte", offered=_never),
    Command("report", "o", "Report", "open the report as a page", offered=_never),
    Command("edit", "e", "Edit", "open the line in $EDITOR", offered=_has_place),
    Command("in_time", "t", "In time", "show a finding, kernel or operator on the timeline", offered=_with_profile),
    Command("cross", "v", "Finding/fix", "from a finding to its fix, and back", offered=_has_counterpart),
    Command("search", "slash", "Search", "search findings, kernels, operators, output", "/", _can_search),
    Command("copy", "y", "Copy", "copy: the place of a finding, a kernel's name, a diff", offered=_can_copy),
)
