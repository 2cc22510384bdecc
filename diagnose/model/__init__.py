"""The nouns of the project: frozen, plain, and readable as JSON. Nothing here imports anything else of ours.

`analyze --json` prints one `Diagnosis`; the journal of a run is made of the others. Times are integer nanoseconds.
"""

from __future__ import annotations

from diagnose.model.check import EditCheck, GateAnswer, GateCheck
from diagnose.model.diagnosis import (
    SCHEMA,
    Accounting,
    ComputePart,
    Diagnosis,
    RankAccounting,
    RankWait,
    Steps,
    StepWork,
)
from diagnose.model.finding import (
    CannotTell,
    Confidence,
    EventTable,
    Evidence,
    Finding,
    Number,
    Place,
    Scalar,
    Severity,
    TraceEvent,
)
from diagnose.model.ladder import Ladder, PracticalCeiling, Rung
from diagnose.model.memory import MemoryPart, MemoryPeak, MemoryTimeline
from diagnose.model.probe_result import Bearing, ProbedFinding, ProbeResult
from diagnose.model.run_records import CollectiveCurve, Facts, Site, SyncSite
from diagnose.model.step_profile import (
    CounterSeries,
    KernelRow,
    Lane,
    OperatorRow,
    Roof,
    SampledCall,
    StepProfile,
    Timeline,
)
from diagnose.model.verdict import TOGETHER, Decision, Gate, GateResult, Interval, Mechanism, Verdict

__all__ = [
    "SCHEMA",
    "TOGETHER",
    "Accounting",
    "Bearing",
    "CannotTell",
    "CollectiveCurve",
    "ComputePart",
    "Confidence",
    "CounterSeries",
    "Decision",
    "Diagnosis",
    "EditCheck",
    "EventTable",
    "Evidence",
    "Facts",
    "Finding",
    "Gate",
    "GateAnswer",
    "GateCheck",
    "GateResult",
    "Interval",
    "KernelRow",
    "Ladder",
    "Lane",
    "Mechanism",
    "MemoryPart",
    "MemoryPeak",
    "MemoryTimeline",
    "Number",
    "OperatorRow",
    "Place",
    "PracticalCeiling",
    "ProbeResult",
    "ProbedFinding",
    "RankAccounting",
    "RankWait",
    "Roof",
    "Rung",
    "SampledCall",
    "Scalar",
    "Severity",
    "Site",
    "StepProfile",
    "StepWork",
    "Steps",
    "SyncSite",
    "Timeline",
    "TraceEvent",
    "Verdict",
]
