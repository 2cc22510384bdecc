"""Journals of runs that tests and pictures share: the events that `diagnose` would record, with fixed times.

A GPU run with a slow loader and a sync per parameter; a CPU run; a healthy run. Each is a list of events in order, so
that a test may stop it at any point.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tinygpt import (
    CWD,
    FUSED_DIFF,
    FUSED_VERDICT,
    ITEM_DIFF,
    ITEM_LINE,
    ITEM_VERDICT,
    LOADER_DIFF,
    LOADER_LINE,
    LOADER_VERDICT,
    MS,
    gpu_diagnosis,
)

from diagnose.model import (
    SCHEMA,
    Accounting,
    CannotTell,
    Confidence,
    Diagnosis,
    Evidence,
    Facts,
    Finding,
    Gate,
    GateResult,
    Ladder,
    MemoryPart,
    MemoryPeak,
    MemoryTimeline,
    Place,
    PracticalCeiling,
    Severity,
    Steps,
)
from diagnose.session import (
    AnyEvent,
    ControlMeasured,
    CountersRead,
    DiagnosisMade,
    FactsLearned,
    FinalMeasured,
    PatchAccepted,
    PhaseChanged,
    ProgramOutput,
    RunEnded,
    RunStarted,
    StepsSeen,
    TraceWritten,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    Warned,
)
from diagnose.units import NS_PER_S

T0 = 1_790_000_000 * NS_PER_S


def steps_seen(first: int, count: int, step_ns: int, input_ns: int, start_ns: int) -> StepsSeen:
    ends, inputs, now = [], [], start_ns
    for index in range(first, first + count):
        wobble = 1 + 0.06 * math.sin(index * 1.7) + 0.04 * math.sin(index * 0.41) + (0.5 if index % 37 == 36 else 0)
        now += int(step_ns * wobble)
        ends.append(now)
        inputs.append(int(input_ns * wobble * (1 + 0.1 * math.sin(index * 0.9))))
    return StepsSeen(at_ns=now, rank=0, ends_ns=ends, input_ns=inputs)


def waiting() -> list[AnyEvent]:
    """The program has been started; no step has ended yet."""
    return [
        RunStarted(
            at_ns=T0, command="fix", program="train.py --data shakespeare.txt", cwd=CWD, version="0.1.0", pid=4711
        ),
        PhaseChanged(at_ns=T0 + 1, phase="waiting for the first training step"),
    ]


def watching() -> list[AnyEvent]:
    """Steps run by; the device's counters are there."""
    facts = Facts(torch_version="2.13.0", device_name="NVIDIA H200", cpu_count=16, device_memory_bytes=150_754_820_096)
    events: list[AnyEvent] = [
        *waiting(),
        FactsLearned(at_ns=T0 + 8 * NS_PER_S, rank=0, facts=facts),
        PhaseChanged(at_ns=T0 + 9 * NS_PER_S, phase="watching until steps are steady"),
    ]
    now = T0 + 10 * NS_PER_S
    for first in range(0, 150, 10):
        seen = steps_seen(first, 10, 60 * MS, 29 * MS, now)
        now = seen.ends_ns[-1]
        lines = "".join(
            f"epoch 0 loss {10.8 - 0.02 * i:.4f} norm {1 + 0.1 * math.sin(i):.2f}\n" for i in range(first, first + 10)
        )
        events += [
            seen,
            ProgramOutput(at_ns=now, text=lines),
            CountersRead(
                at_ns=now,
                rank=0,
                values={
                    "gpu.utilization": 41.0,
                    "gpu.sm_activity": 29.4,
                    "gpu.dram_activity": 12.5,
                    "gpu.memory_used_bytes": 11_811_160_064.0,
                    "host.cpu": 104.0,
                },
            ),
        ]
    return events


def diagnosed() -> list[AnyEvent]:
    """Four steps were traced and the findings are there."""
    now = T0 + 20 * NS_PER_S
    return [
        *watching(),
        PhaseChanged(at_ns=now, phase="tracing 4 steps"),
        TraceWritten(at_ns=now + 1, rank=0, path="rank0/trace.json.gz", steps=4),
        PhaseChanged(at_ns=now + 2, phase="reading the trace"),
        DiagnosisMade(at_ns=now + 3 * NS_PER_S, diagnosis=gpu_diagnosis()),
        PhaseChanged(at_ns=now + 3 * NS_PER_S, phase="diagnosed"),
    ]


def full() -> list[AnyEvent]:
    """The same, with what the memory of the device held."""
    *before, made, done = diagnosed()
    assert isinstance(made, DiagnosisMade)
    at = Place(f"{CWD}/model.py", 31, "hidden = F.gelu(self.up(x))", "forward")
    parts = (
        MemoryPart("activations", 5 << 30, 96, at, "forward", "backward"),
        MemoryPart("logits", 3 << 30, 3, replace(at, line=52, code="logits = self.head(x)"), "forward", "backward"),
        MemoryPart("optimizer state", 1 << 30, 300, None, "before", "never"),
    )
    moments = range(1, 41)
    timeline = MemoryTimeline(
        None,
        {
            "optimizer state": (1 << 30,) * len(moments),
            "activations": tuple(min(moment, 41 - moment) << 28 for moment in moments),
            "logits": tuple(3 << 30 if 18 <= moment <= 23 else 0 for moment in moments),
        },
    )
    sizes = {"optimizer state": 1 << 30, "activations": 5 << 30, "logits": 3 << 30}
    peak = MemoryPeak(0, None, 9 << 30, sizes, parts, 10 << 30, 1 << 29, 141 << 30, timeline=timeline)
    return [*before, DiagnosisMade(at_ns=made.at_ns, diagnosis=replace(made.diagnosis, memory=peak)), done]


def _blocks(fixer: str, count: int, saving: float, noise: float, start_ns: int, step_ns: int) -> list[AnyEvent]:
    blocks: list[AnyEvent] = []
    for pair in range(count):
        original = int(step_ns * (1 + noise * math.sin(pair * 2.3)))
        patched = int(original * (1 - saving) * (1 + noise * math.cos(pair * 1.9)))
        half = 2.6 * noise / math.sqrt(pair + 1)
        now = saving + noise * math.sin(pair * 1.3) / (pair + 1)
        known = pair >= 3
        blocks.append(
            TrialBlock(
                at_ns=start_ns + pair * NS_PER_S,
                fixer=fixer,
                pair=pair,
                original_ns=original,
                patched_ns=patched,
                saving=now if known else None,
                low=now - half if known else None,
                high=now + half if known else None,
            )
        )
    return blocks


def trying() -> list[AnyEvent]:
    """The first fix has its verdict, the second is being tried."""
    now = T0 + 40 * NS_PER_S
    return [
        *diagnosed(),
        PhaseChanged(at_ns=now, phase="measuring the original against itself"),
        ControlMeasured(at_ns=now + NS_PER_S, resolution=0.004, pairs=20, generations=2, step_ns=60_100_000),
        PhaseChanged(at_ns=now + 2 * NS_PER_S, phase="trying fixes", detail="1 of 3"),
        TrialStarted(
            at_ns=now + 2 * NS_PER_S,
            fixer="loader-workers",
            setting=dict(LOADER_VERDICT.setting),
            predicted_ns=29_400_000,
            summary="4 worker processes, kept over epochs, with pinned memory",
            diff=LOADER_DIFF,
            where=[LOADER_LINE],
        ),
        *_blocks("loader-workers", 40, 0.461, 0.012, now + 3 * NS_PER_S, 60_100_000),
        VerdictReached(at_ns=now + 44 * NS_PER_S, verdict=LOADER_VERDICT),
        PhaseChanged(at_ns=now + 45 * NS_PER_S, phase="trying fixes", detail="2 of 3"),
        TrialStarted(
            at_ns=now + 45 * NS_PER_S,
            fixer="defer-item",
            setting={},
            predicted_ns=11_200_000,
            summary="The gradients' norms are added on the device; one wait a step is left",
            diff=ITEM_DIFF,
            where=[ITEM_LINE],
        ),
        *_blocks("defer-item", 17, 0.287, 0.021, now + 46 * NS_PER_S, 32_400_000),
    ]


def fixed() -> list[AnyEvent]:
    """The whole story: two fixes kept, one without effect, the final figures, the diff."""
    now = T0 + 110 * NS_PER_S
    return [
        *trying(),
        *_blocks("defer-item", 40, 0.287, 0.021, now - 23 * NS_PER_S, 32_400_000)[17:],
        VerdictReached(at_ns=now + NS_PER_S, verdict=ITEM_VERDICT),
        PhaseChanged(at_ns=now + NS_PER_S, phase="trying fixes", detail="3 of 3"),
        TrialStarted(
            at_ns=now + NS_PER_S,
            fixer="fused-optimizer",
            setting={},
            predicted_ns=1_300_000,
            summary="AdamW as one fused kernel",
            diff=FUSED_DIFF,
        ),
        *_blocks("fused-optimizer", 40, 0.001, 0.012, now + 2 * NS_PER_S, 23_100_000),
        VerdictReached(at_ns=now + 43 * NS_PER_S, verdict=FUSED_VERDICT),
        PatchAccepted(
            at_ns=now + 44 * NS_PER_S,
            diff=ITEM_DIFF + LOADER_DIFF.split("\n", 2)[2],
            fixers=["loader-workers", "defer-item"],
        ),
        FinalMeasured(
            at_ns=now + 60 * NS_PER_S,
            original_ns=60_100_000,
            patched_ns=23_100_000,
            runs=3,
            how="each program alone, without diagnose",
            gate=GateResult(Gate.BITWISE, True, "125 losses and gradients are equal bit for bit"),
        ),
        RunEnded(at_ns=now + 61 * NS_PER_S, returncode=0, exit_code=0, message=""),
    ]


def cpu() -> list[AnyEvent]:
    """A run without a device: a loader that sleeps, and Python between the steps."""
    place = Place("/home/user/tabular/train.py", 48, "time.sleep(0.002)", "__getitem__", 0.98)
    accounting = Accounting(compute=7_900_000, idle={"input": 33_100_000, "python": 4_000_000})
    steps = Steps(4, 45_000_000, 45_200_000, 180_800_000, "optimizer")
    finding = Finding(
        "input-bound",
        Severity.HIGH,
        None,
        33_000_000,
        0.73,
        Confidence.MEASURED,
        "The training thread makes every batch itself (0 workers) and computes nothing meanwhile.",
        (Evidence("loader wait per step", 33_100_000, "ns"), Evidence("loader workers", 0, "count")),
        (place,),
        ("loader-workers",),
    )
    stall = Finding(
        "python-stall",
        Severity.MEDIUM,
        None,
        4_000_000,
        0.088,
        Confidence.BOUND,
        "Python runs between the steps while nothing computes.",
        (Evidence("Python outside the framework per step", 4_000_000, "ns"),),
        (Place("/home/user/tabular/train.py", 91, "history.append(json.dumps(metrics, sort_keys=True))", "log"),),
    )
    needs = "device work in the trace; this run used no device"
    diagnosis = Diagnosis(
        SCHEMA,
        ("runs/cpu",),
        1,
        None,
        steps,
        accounting,
        (finding, stall),
        tuple(CannotTell(rule, needs) for rule in ("fp32-matmul", "launch-bound", "pageable-copies")),
    )
    seen = steps_seen(0, 60, 45 * MS, 33 * MS, T0)
    return [
        RunStarted(at_ns=T0, command="run", program="train.py", cwd="/home/user/tabular", version="0.1.0"),
        FactsLearned(at_ns=T0 + NS_PER_S, rank=0, facts=Facts(torch_version="2.13.0", cpu_count=2)),
        seen,
        CountersRead(at_ns=T0 + 3 * NS_PER_S, rank=0, values={"host.cpu": 96.0}),
        DiagnosisMade(at_ns=T0 + 8 * NS_PER_S, diagnosis=diagnosis),
        RunEnded(at_ns=T0 + 9 * NS_PER_S, returncode=0, exit_code=0),
    ]


def healthy() -> list[AnyEvent]:
    """Two ranks that compute nearly all the time."""
    accounting = Accounting(compute=117_900_000, exposed_comm=1_800_000, idle={"dispatch": 400_000})
    steps = Steps(4, 120_100_000, 120_200_000, 480_800_000, "optimizer")
    note = Finding(
        "host-sync",
        Severity.NOTE,
        None,
        100_000,
        0.0008,
        Confidence.MEASURED,
        "The host waits once a step, but the device has work queued and loses nothing.",
        (Evidence("waits per step", 1, "count"),),
        (Place("/srv/jobs/pretrain/loop.py", 212, "losses.append(loss.item())", "train_step"),),
    )
    now = accounting.compute
    least = PracticalCeiling(now - 9 * MS, now - 12 * MS, 3 * MS, 0, 0.7, now - 4 * MS, 4 * MS, now - 5 * MS)
    ladder = Ladder(120_200_000, 0.65, (), least, {"no compute": 2_300_000, "products": 8 * MS, "other kernels": MS})
    diagnosis = Diagnosis(
        SCHEMA, ("rank0.json.gz", "rank1.json.gz"), 2, "NVIDIA H200", steps, accounting, (note,), ladder=ladder
    )
    return [
        RunStarted(
            at_ns=T0,
            command="run",
            program="-- torchrun --nproc-per-node 2 loop.py",
            cwd="/srv/jobs/pretrain",
            version="0.1.0",
        ),
        steps_seen(0, 90, 120 * MS, 0, T0),
        DiagnosisMade(at_ns=T0 + 20 * NS_PER_S, diagnosis=diagnosis),
        RunEnded(at_ns=T0 + 21 * NS_PER_S, returncode=0, exit_code=0),
    ]


def failed() -> list[AnyEvent]:
    """The program raised before its first step."""
    return [
        *waiting(),
        ProgramOutput(at_ns=T0 + 2, text="Traceback (most recent call last):\nKeyError: 'lr'\n"),
        Warned(at_ns=T0 + 3, message="No step ended, so no trace was taken."),
        RunEnded(
            at_ns=T0 + 3, returncode=1, exit_code=3, message="train.py ended with exit code 1 before its first step."
        ),
    ]
