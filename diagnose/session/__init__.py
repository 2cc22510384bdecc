"""The journal of a run: the one thing that screens and reports read.

A run is a folder `.diagnose/runs/<time>-<name>/`, ignored by git through its own `.gitignore`. Its `journal.jsonl`
takes one event a line, appended and flushed whole, so that a killed run leaves a journal that still opens: a torn last
line is dropped on reading and said so. Screens and reports fold the events into a `State`; nothing else is shared.
"""

from diagnose.session.events import (
    AnyEvent,
    ControlMeasured,
    CountersRead,
    DiagnosisMade,
    Event,
    FactsLearned,
    FinalMeasured,
    Noticed,
    PatchAccepted,
    PhaseChanged,
    Probed,
    ProgramOutput,
    RunEnded,
    RunStarted,
    StepsProfiled,
    StepsSeen,
    TraceWritten,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    Warned,
)
from diagnose.session.journal import CHECKS, JOURNAL, RUNS, Session, latest, read, run_folders
from diagnose.session.live_journal import JournalTail
from diagnose.session.state import RankSteps, State, TrialState, fold, with_verdict

__all__ = [
    "CHECKS",
    "JOURNAL",
    "RUNS",
    "AnyEvent",
    "ControlMeasured",
    "CountersRead",
    "DiagnosisMade",
    "Event",
    "FactsLearned",
    "FinalMeasured",
    "JournalTail",
    "Noticed",
    "PatchAccepted",
    "PhaseChanged",
    "Probed",
    "ProgramOutput",
    "RankSteps",
    "RunEnded",
    "RunStarted",
    "Session",
    "State",
    "StepsProfiled",
    "StepsSeen",
    "TraceWritten",
    "TrialBlock",
    "TrialStarted",
    "TrialState",
    "VerdictReached",
    "Warned",
    "fold",
    "latest",
    "read",
    "run_folders",
    "with_verdict",
]
