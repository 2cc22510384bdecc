"""Programs that read values of the training step and log them: meters, histories, accuracies, progress lines."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "logging"

SCRIPT = """
import csv, json, math
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(<seed>)
X = torch.randn(<samples>, 6)
Y = (X[:, :3] + 0.3 * torch.randn(<samples>, 3)).argmax(1)
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
<before>
for epoch in range(3):
    total, seen = <zero>, 0
    <epoch_start>
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        logits = model(x)
        loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        <read>
        seen += 1
        <in_step>
    <epoch_end>
<end>
"""

FUNCTION = """
import csv, json, math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def criterion(logits, y):
    return F.cross_entropy(logits, y)


def train_one_epoch(model, loader, optimizer, epoch, history):
    model.train()
    total, seen = <zero>, 0
    <epoch_start>
    for step, (x, y) in enumerate(loader):
        logits = model(x)
        loss = criterion(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        <read>
        seen += 1
        <in_step>
    <epoch_end>
    return total / seen


def main():
    torch.manual_seed(<seed>)
    X = torch.randn(<samples>, 6)
    Y = (X[:, :3] + 0.3 * torch.randn(<samples>, 3)).argmax(1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    history = []
    <before>
    for epoch in range(3):
        mean = train_one_epoch(model, loader, optimizer, epoch, history)
        print("mean", epoch, mean)
    <end>


if __name__ == "__main__":
    main()
"""

TRAINER = """
import csv, json, math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader, lr=0.05):
        self.model, self.loader = model, loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.history = []

    def run_epoch(self, epoch):
        history = self.history
        optimizer = self.optimizer
        total, seen = <zero>, 0
        self.running = 0.0
        <epoch_start>
        for step, (x, y) in enumerate(self.loader):
            optimizer.zero_grad()
            logits = self.model(x)
            loss = self.criterion(logits, y)
            loss.backward()
            optimizer.step()
            self.running += loss.item()
            <read>
            seen += 1
            <in_step>
        <epoch_end>
        print("running", f"{self.running / seen:.5f}")

    def fit(self, epochs):
        history = self.history
        model = self.model
        <before>
        for epoch in range(epochs):
            self.run_epoch(epoch)
        <end>


if __name__ == "__main__":
    torch.manual_seed(<seed>)
    X = torch.randn(<samples>, 6)
    Y = (X[:, :3] + 0.3 * torch.randn(<samples>, 3)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    Trainer(model, DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)).fit(3)
"""

LOOPS = {"script": SCRIPT, "function": FUNCTION, "trainer": TRAINER}

READS = {
    "loss": ("0.0", "total += loss.item()"),
    "weighted": ("0.0", "total += loss.item() * x.size(0)"),
    "count": ("0", "total += (logits.argmax(1) == y).sum().item()"),
    "ratio": ("0", "total += (logits.argmax(1) == y).sum().item() / len(y)"),
    "ratio_of_size": ("0", "correct = logits.max(1)[1].eq(y).sum().item()\ntotal += correct / y.size(0)"),
    "mean_acc": ("0.0", "total += (logits.argmax(1) == y).float().mean().item()"),
    "percent": ("0", "total += 100.0 * (logits.argmax(1) == y).float().sum().item() / x.shape[0]"),
    "float_of": ("0.0", "total += float(loss)"),
    "detached": ("0.0", "total += loss.detach().cpu().item()"),
    "numpy": ("0.0", "total += loss.detach().numpy()"),
    "int_of_float": ("0", "total += int(loss.item() * 100)"),
    "perplexity": ("0.0", "total += math.exp(loss.item())"),
    "weight_view": ("0.0", "first = next(iter(optimizer.param_groups[0]['params']))\ntotal += first[0, 0].item()"),
}
"""How a step reads its value: what the sum begins with, and the statements."""

_SAFE = ("loss", "weighted", "count", "mean_acc")
"""Reads of a number that is only logged, each the shortest way to write it."""

HISTORY_END = 'print("history", len(history), [round(float(v), 5) for v in history[:4]])'
SINKS: dict[str, dict[str, str]] = {
    "epoch": {"epoch_end": 'print(epoch, f"{total / seen:.4f}")'},
    "interval": {
        "in_step": 'if step % 5 == 4:\n    print(epoch, step, f"{total / seen:.4f}", f"{loss.item():.4f}")',
        "epoch_end": 'print("epoch", epoch, total)',
    },
    "interval_reset": {
        "epoch_start": "shown = 0",
        "in_step": 'if (step + 1) % 4 == 0:\n    print(epoch, step + 1, f"{(total - shown) / 4:.4f}")\n    shown = total',
        "epoch_end": 'print("epoch", epoch, total)',
    },
    "csv": {
        "in_step": 'if step % 3 == 0:\n    with open("log.csv", "a", newline="") as f:\n        csv.writer(f).writerow([epoch, step, total])',
        "epoch_end": "print(epoch, total)",
    },
    "json": {
        "epoch_end": 'history_file = {"epoch": epoch, "total": float(total)}\nwith open(f"epoch{epoch}.json", "w") as f:\n    json.dump(history_file, f)',
    },
    "best": {
        "epoch_end": 'if total / seen > 0.5:\n    torch.save({"epoch": epoch, "value": float(total)}, "good.pt")\n    print("saved", epoch)\nprint(epoch, total / seen)',
    },
}

STEP_DECISIONS = {
    "break_on_value": 'if loss.item() < 0.25:\n    print("converged", epoch, step)\n    break',
    "lr_by_value": 'if loss.item() > 1.0:\n    optimizer.param_groups[0]["lr"] *= 0.9',
    "skip_by_value": 'value = loss.item()\nif value > 0.9:\n    continue\nprint("small", step, f"{value:.3f}")',
    "shown_each_step": 'print(step, f"{loss.item():.5f}")',
    "ema_decides": "smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()\nif smooth < 0.4:\n    break",
    "best_in_step": 'if loss.item() < best:\n    best = loss.item()\n    torch.save({"best": best}, "best.pt")',
}

SPECIAL = {
    "history_of_items": (
        {"before": "<history>", "in_step": "history.append(loss.item())", "end": HISTORY_END},
        "a list of losses, read after training",
    ),
    "history_of_views": (
        {"before": "<history>", "in_step": "history.append(loss.view(1).item())", "end": HISTORY_END},
        "a loss of shape [1]",
    ),
    "history_of_rows": (
        {
            "before": "<history>",
            "in_step": "history.append(logits.detach().mean(0, keepdim=True).sum(1).item())",
            "end": HISTORY_END,
        },
        "a value of shape [1]",
    ),
    "history_of_pairs": (
        {
            "before": "<history>",
            "in_step": "history.append((step, loss.item()))",
            "end": 'print("history", history[-1], sum(v for _, v in history) / len(history))',
        },
        "pairs of step and loss",
    ),
    "history_cut": (
        {
            "before": "<history>",
            "in_step": "history.append(loss.item())\nif len(history) > 20:\n    del history[0]",
            "end": HISTORY_END,
        },
        "a window of the last losses",
    ),
    "history_read_in_epoch": (
        {
            "before": "<history>",
            "in_step": "history.append(loss.item())",
            "epoch_end": "print(epoch, min(history), max(history), sum(history[-5:]) / 5)",
            "end": HISTORY_END,
        },
        "a list of losses, read in each epoch",
    ),
    "history_dumped": (
        {
            "before": "<history>",
            "in_step": 'history.append({"step": step, "loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]})',
            "end": 'with open("history.json", "w") as f:\n    json.dump(history, f)\nprint(len(history))',
        },
        "records for a JSON file",
    ),
    "smoothed": (
        {
            "epoch_start": "smooth = 0.0",
            "in_step": "smooth = 0.98 * smooth + 0.02 * loss.item()",
            "epoch_end": 'print(epoch, f"{smooth / (1 - 0.98 ** seen):.5f}")',
        },
        "a moving average of the loss",
    ),
    "last_value": (
        {"in_step": "last = loss.item()", "epoch_end": 'print("last", epoch, f"{last:.6f}")'},
        "the loss of the last step",
    ),
    "worst_value": (
        {
            "epoch_start": "worst = -1.0",
            "in_step": "worst = max(worst, loss.item())",
            "epoch_end": 'print("worst", epoch, f"{worst:.6f}")',
        },
        "the highest loss of an epoch",
    ),
    "two_sums": (
        {
            "epoch_start": "correct = 0\nmargin = 0.0",
            "in_step": "correct += (logits.argmax(1) == y).sum().item()\n"
            "top = logits.topk(2, dim=1).values\nmargin += (top[:, 0] - top[:, 1]).mean().item()",
            "epoch_end": 'print(epoch, correct, f"{100.0 * correct / (seen * 16):.2f}%", f"{margin / seen:.4f}")',
        },
        "an integer and a float sum",
    ),
    "confusion": (
        {
            "epoch_start": "table = [[0] * 3 for _ in range(3)]",
            "in_step": "for t, p in zip(y.tolist(), logits.argmax(1).tolist()):\n    table[t][p] += 1",
            "epoch_end": "print(epoch, table)",
        },
        "a confusion table, counted in Python",
    ),
    "predictions": (
        {
            "epoch_start": "outputs = []",
            "in_step": "outputs.append(logits.detach().cpu().numpy())",
            "epoch_end": 'print(epoch, len(outputs), f"{sum(float(o.sum()) for o in outputs):.4f}")',
        },
        "outputs kept as arrays",
    ),
    "weights_watched": (
        {
            "epoch_start": "norms = []",
            "in_step": "norms.append(sum(p.detach().norm().item() for p in optimizer.param_groups[0]['params']))",
            "epoch_end": 'print(epoch, f"{norms[0]:.6f} {norms[-1]:.6f}")',
        },
        "norms of parameters that change in the next step",
    ),
    "weight_recorded": (
        {
            "epoch_start": "trace = []",
            "in_step": "trace.append(optimizer.param_groups[0]['params'][0][0, 0].item())",
            "epoch_end": 'print(epoch, f"{trace[0]:.6f} {trace[-1]:.6f} {sum(trace):.6f}")',
        },
        "one weight, a view of a parameter that the next step changes in place",
    ),
    "gradient_recorded": (
        {
            "epoch_start": "trace = []",
            "in_step": "trace.append(optimizer.param_groups[0]['params'][0].grad[0, 0].item())",
            "epoch_end": 'print(epoch, f"{trace[0]:.6f} {trace[-1]:.6f} {sum(trace):.6f}")',
        },
        "one gradient, a view of memory that the next step overwrites",
    ),
    "formatted_postfix": (
        {
            "epoch_start": 'line = ""',
            "in_step": "line = f\"loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.3f}\"",
            "epoch_end": "print(epoch, line)",
        },
        "the text of a progress line",
    ),
    "divided_later": (
        {
            "epoch_start": "sums = {'loss': 0.0, 'n': 0}",
            "in_step": "sums['loss'] += loss.item() * y.size(0)\nsums['n'] += y.size(0)",
            "epoch_end": "print(epoch, f\"{sums['loss'] / sums['n']:.5f}\")",
        },
        "sums in a dictionary",
    ),
    "int_then_float": (
        {
            "epoch_start": "score = 0",
            "in_step": "score += (logits.argmax(1) == y).sum().item()\nscore += 0.5 * (logits.argmax(1) != y).sum().item()",
            "epoch_end": "print(epoch, score)",
        },
        "a count to which halves are added",
    ),
    "rounded": (
        {
            "epoch_start": "score = 0",
            "in_step": "score += round(loss.item(), 2)",
            "epoch_end": "print(epoch, score)",
        },
        "rounded losses",
    ),
    "returned_early": (
        {
            "epoch_start": "best = float('inf')\nbad = 0",
            "in_step": "best, bad = (loss.item(), 0) if loss.item() < best else (best, bad + 1)\nif bad >= 6:\n    break",
            "epoch_end": "print(epoch, seen, f'{best:.5f}')",
        },
        "patience within an epoch",
    ),
}


def programs() -> Iterator[Program]:
    """All members of the family."""
    yield from _products()
    for at, (loop, template) in enumerate(LOOPS.items()):
        for name, decision in STEP_DECISIONS.items():
            parts = {"in_step": decision, "epoch_end": 'print("total", epoch, total / max(seen, 1))'}
            start = "best = 9.9\nsmooth = 0.0"
            text = _text(template, "loss", at + 5, epoch_start=start, **parts)
            yield Program(f"log_{loop}_{name}", FAMILY, text)
        for name, (special, _) in SPECIAL.items():
            known = dict(special)
            if known.get("before") == "<history>":
                known["before"] = "history = []" if loop == "script" else ""
            yield Program(f"log_{loop}_{name}", FAMILY, _text(template, "loss", at + 2, **known))


def _products() -> Iterator[Program]:
    """Ways to read times ways to show; each loop gets every second of them."""
    count = 0
    for read in READS:
        for sink, parts in SINKS.items():
            count += 1
            for at, (loop, template) in enumerate(LOOPS.items()):
                if (count + at) % 3:
                    continue
                safe = read in _SAFE and sink in ("epoch", "interval_reset") and loop != "trainer"
                yield Program(
                    f"log_{loop}_{read}_{sink}",
                    FAMILY,
                    _text(template, read, count, **parts),
                    frozenset({"defer-item"} if safe else ()),
                )


def _text(template: str, read: str, seed: int, **parts: str) -> str:
    zero, statements = READS[read]
    samples = str(100 + 16 * (seed % 3) + seed % 2)
    slots = dict.fromkeys(("before", "epoch_start", "in_step", "epoch_end", "end"), "")
    return fill(template, zero=zero, read=statements, seed=str(seed), samples=samples, **{**slots, **parts})
