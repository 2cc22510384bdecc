"""A GPU run that never was: its program, its diagnosis, the verdicts on its fixes, with numbers made up for tests."""

from __future__ import annotations

from diagnose.model import (
    SCHEMA,
    Accounting,
    CannotTell,
    Confidence,
    Decision,
    Diagnosis,
    EventTable,
    Evidence,
    Finding,
    Gate,
    GateResult,
    Interval,
    Mechanism,
    Place,
    RankAccounting,
    Severity,
    Steps,
    TraceEvent,
    Verdict,
)
from diagnose.units import NS_PER_MS, NS_PER_S

T0 = 1_790_000_000 * NS_PER_S

CWD = "/home/user/tinygpt"
MS = NS_PER_MS

TRAIN = '''"""Train a small GPT on a text file."""

import argparse

import torch
from torch.utils.data import DataLoader

from tinygpt.data import TextDataset
from tinygpt.model import GPT


def gradient_norm(model: torch.nn.Module) -> float:
    """The norm of all gradients together, for the log."""
    total = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            total += parameter.grad.norm().item() ** 2
    return total**0.5


def main() -> None:
    args = parse()
    device = torch.device("cuda")
    model = GPT(layers=12, width=768, heads=12).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    dataset = TextDataset(args.data, block=1024)
    loader = DataLoader(dataset, batch_size=args.batch, shuffle=True)
    for epoch in range(args.epochs):
        for tokens, targets in loader:
            tokens, targets = tokens.to(device), targets.to(device)
            loss = model(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            norm = gradient_norm(model)
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.4f} norm {norm:.2f}")
'''
SOURCES = {f"{CWD}/train.py": TRAIN}

_NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WAITS = tuple(
    TraceEvent(_NEXT, T0 + step * 60 * MS + 2 * MS, length * MS, step, 2 * MS, "main", Place(f"{CWD}/train.py", 26))
    for step, length in ((1, 31), (0, 30), (2, 28))
)

LOADER_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -24,7 +24,14 @@ def main() -> None:
     model = GPT(layers=12, width=768, heads=12).to(device)
     optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
     dataset = TextDataset(args.data, block=1024)
-    loader = DataLoader(dataset, batch_size=args.batch, shuffle=True)
+    loader = DataLoader(
+        dataset,
+        batch_size=args.batch,
+        shuffle=True,
+        num_workers=4,
+        persistent_workers=True,
+        pin_memory=True,
+    )
     for epoch in range(args.epochs):
         for tokens, targets in loader:
             tokens, targets = tokens.to(device), targets.to(device)
"""
ITEM_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -11,10 +11,8 @@
 def gradient_norm(model: torch.nn.Module) -> float:
     \"\"\"The norm of all gradients together, for the log.\"\"\"
-    total = 0.0
-    for parameter in model.parameters():
-        if parameter.grad is not None:
-            total += parameter.grad.norm().item() ** 2
-    return total**0.5
+    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
+    return torch.stack(norms).norm().item()
"""
FUSED_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -25,1 +23,1 @@ def main() -> None:
-    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
+    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
"""

LOADER_LINE = Place(
    f"{CWD}/train.py", 27, "loader = DataLoader(dataset, batch_size=args.batch, shuffle=True)", "main", 1.0
)
ITEM_LINE = Place(f"{CWD}/train.py", 17, "total += parameter.grad.norm().item() ** 2", "gradient_norm", 0.93)
PRINT_LINE = Place(
    f"{CWD}/train.py", 36, 'print(f"epoch {epoch} loss {loss.item():.4f} norm {norm:.2f}")', "main", 0.07
)


def gpu_diagnosis() -> Diagnosis:
    """A 62.0 ms step of which 29.4 ms wait for input and 11.2 ms are syncs."""
    accounting = Accounting(
        compute=18_200_000,
        exposed_copy=900_000,
        idle={"input": 29_400_000, "sync": 11_200_000, "dispatch": 1_500_000, "unknown": 800_000},
    )
    steps = Steps(4, 62_000_000, 62_400_000, 249_600_000, "optimizer")
    together = Accounting(
        compute=73_600_000,
        exposed_copy=3_600_000,
        idle={"input": 118_400_000, "sync": 44_800_000, "dispatch": 6_000_000, "unknown": 3_200_000},
    )
    findings = (
        Finding(
            "input-bound",
            Severity.HIGH,
            None,
            29_400_000,
            0.471,
            Confidence.MEASURED,
            "The device waits for the loader, which makes each batch in the training process (0 workers).",
            (
                Evidence("idle.input", 29_400_000, "ns", (11, 12, 40), EventTable.RANGES, 8, WAITS),
                Evidence("loader workers", 0, "count"),
                Evidence("time per sample", 1_840_000, "ns"),
                Evidence("batch", 16, "samples"),
            ),
            (LOADER_LINE,),
            ("loader-workers",),
        ),
        Finding(
            "host-sync",
            Severity.HIGH,
            None,
            11_200_000,
            0.179,
            Confidence.BOUND,
            "The host waits for the device 149 times a step, once for each parameter, and the device then runs dry.",
            (Evidence("waits per step", 149, "count"), Evidence("idle after a wait", 11_200_000, "ns")),
            (ITEM_LINE, PRINT_LINE),
            ("defer-item",),
            "an experiment without the waits",
        ),
        Finding(
            "slow-optimizer",
            Severity.LOW,
            None,
            1_300_000,
            0.021,
            Confidence.BOUND,
            "AdamW runs as 12 foreach kernels over 124 M parameters; a fused one reads and writes them once.",
            (Evidence("optimizer time per step", 2_900_000, "ns"), Evidence("bytes moved", 3_472_883_712, "bytes")),
            (Place(f"{CWD}/train.py", 25, "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)", "main"),),
            ("fused-optimizer",),
        ),
    )
    return Diagnosis(
        SCHEMA,
        (".diagnose/runs/20261121-091500-train",),
        1,
        "NVIDIA H200",
        steps,
        accounting,
        findings,
        (
            CannotTell("small-batch", "GPU counters (SM activity), which this device gives only with GPM on"),
            CannotTell("fp32-matmul", "the shapes of the matrix products: record them with record_shapes=True"),
        ),
        ("The profiler itself slows these steps by 3.1 %: 60.1 ms while nobody traced.",),
        (RankAccounting(0, "rank0", steps, together),),
    )


LOADER_VERDICT = Verdict(
    "loader-workers",
    Decision.KEPT,
    "4 workers hide the loader behind the device; 2 were too few, 8 brought nothing more.",
    {"num_workers": 4, "persistent_workers": True, "pin_memory": True},
    Interval(0.461, 0.452, 0.470),
    27_700_000,
    29_400_000,
    0.004,
    40,
    2,
    GateResult(Gate.BITWISE, True, "loss and 149 parameters equal after 8 steps."),
    Mechanism("idle.input", 29_400_000, 310_000, "ns", True),
    (9_663_676_416, 9_663_676_416),
    LOADER_DIFF,
    (LOADER_LINE,),
)
ITEM_VERDICT = Verdict(
    "defer-item",
    Decision.KEPT,
    "One wait a step is left of 149: the norms are added on the device.",
    {},
    Interval(0.287, 0.279, 0.296),
    9_300_000,
    11_200_000,
    0.004,
    40,
    2,
    GateResult(Gate.BITWISE, True, "loss and 149 parameters equal after 8 steps."),
    Mechanism("sync_calls", 149, 1, "calls", True),
    None,
    ITEM_DIFF,
    (ITEM_LINE,),
)
FUSED_VERDICT = Verdict(
    "fused-optimizer",
    Decision.NO_CHANGE,
    "No difference that this machine can tell from none.",
    {},
    Interval(0.001, -0.005, 0.007),
    20_000,
    1_300_000,
    0.004,
    40,
    2,
    GateResult(Gate.ROUNDING, True, "error against float64 is 1.1 times the original's."),
    Mechanism("compute", 18_200_000, 18_150_000, "ns", False),
    None,
    FUSED_DIFF,
)
