"""Loops with optimizers, clipping, accumulation, checks, exceptions and interrupts."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

LOOP = """
import copy, csv, json, math, sys, time, warnings
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(6, 10), nn.Linear(10, 1), nn.Linear(10, 1)

    def forward(self, x, task=0):
        h = torch.tanh(self.body(x))
        return self.a(h) if task == 0 else self.b(h)


model = Net()
<optimizer>
history = []
<helpers>


def train(steps=24):
    <start>
    for step in range(steps):
        x = torch.randn(8, 6)
        y = x.sum(1, keepdim=True).sin()
        <zero>
        <forward>
        <check>
        loss.backward()
        <before_step>
        <step>
        <after>
        if step % 6 == 5:
            print(step, f"{loss.item():.6f}")


<call>
print([f"{float(p.double().abs().sum()):.6f}" for p in model.parameters()])
<end>
"""
DEFAULT = {
    "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)",
    "helpers": "", "start": "", "zero": "optimizer.zero_grad()", "forward": "loss = F.mse_loss(model(x), y)",
    "check": "", "before_step": "", "step": "optimizer.step()", "after": "", "call": "train()", "end": "",
}  # fmt: skip
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(<p>, lr=0.05)",
    "momentum": "torch.optim.SGD(<p>, lr=0.05, momentum=0.9, weight_decay=0.05)",
    "adamw": "torch.optim.AdamW(<p>, lr=1e-2, weight_decay=0.1)",
    "rmsprop": "torch.optim.RMSprop(<p>, lr=1e-3)",
    "adagrad": "torch.optim.Adagrad(<p>, lr=1e-2)",
    "amsgrad": "torch.optim.Adam(<p>, lr=1e-2, betas=(0.8, 0.95), eps=1e-4, amsgrad=True)",
}
ZEROS = {
    "kept": "optimizer.zero_grad(set_to_none=False)",
    "by_model": "model.zero_grad(set_to_none=False)",
    "by_loop": "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.zero_()",
}
HEADS = {
    "idle_head": "loss = F.mse_loss(model(x, int(step >= 12)), y)",
    "both_heads": "loss = F.mse_loss(model(x) + model(x, 1), y)",
}
CLIP = "norm = 0.0\nfor p in model.parameters():\n    if p.grad is not None:\n        norm += p.grad.norm().item() ** 2\nnorm = norm ** 0.5\n"
VARIANTS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "clip_by_hand": ("optimizers", {"before_step": CLIP + "if norm > 0.5:\n    for p in model.parameters():\n        if p.grad is not None:\n            p.grad.mul_(0.5 / norm)"}, {}),
    "clip_logged": ("optimizers", {"before_step": CLIP + "history.append(norm)", "end": "print(len(history), f'{sum(history):.5f}')"}, {}),
    "gains_logged": ("optimizers", {"helpers": "gains = [nn.Parameter(torch.full(size, 0.5)) for size in ((), (1,), (1, 1))]", "forward": "loss = F.mse_loss(model(x) * math.prod(gains), y)", "after": "with torch.no_grad():\n    for gain in gains:\n        gain -= 0.05 * gain.grad\n        gain.grad = None\nshare = 0.0\nfor gain in gains:\n    share += gain.item()\nif step % 9 == 8:\n    print(step, f'{share / 3:.6f}')"}, {}),
    "clip_skips": ("optimizers", {"before_step": CLIP, "step": "if norm < 0.8:\n    optimizer.step()\nelse:\n    print('skipped', step)"}, {}),
    "clip_by_value": ("optimizers", {"before_step": "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.data.clamp_(-0.02, 0.02)"}, {}),
    "gradients_in_one_tensor": ("optimizers", {"helpers": "flat, at = torch.zeros(sum(p.numel() for p in model.parameters())), 0\nfor p in model.parameters():\n    p.grad = flat[at:at + p.numel()].view_as(p)\n    at += p.numel()", "zero": "model.zero_grad(set_to_none=False)", "before_step": "flat.clamp_(-0.02, 0.02)"}, {"zero-grad-none": "the gradients lie in a tensor of the program's"}),
    "accumulate": ("optimizers", {"zero": "if step % 4 == 0:\n    optimizer.zero_grad()", "forward": "loss = F.mse_loss(model(x), y) / 4", "step": "if step % 4 == 3:\n    optimizer.step()"}, {}),
    "accumulate_tail": ("optimizers", {"zero": "if step % 5 == 0:\n    optimizer.zero_grad()", "forward": "loss = F.mse_loss(model(x), y) / 5", "step": "if step % 5 == 4 or step == steps - 1:\n    optimizer.step()"}, {}),
    "scheduler": ("optimizers", {"helpers": "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)", "after": "scheduler.step()"}, {}),
    "plateau": ("optimizers", {"helpers": "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)", "after": "scheduler.step(loss.item())"}, {}),
    "rate_by_hand": ("optimizers", {"start": "lr = 1e-2", "after": "lr *= 0.97\nfor group in optimizer.param_groups:\n    group['lr'] = lr"}, {}),
    "two_on_a_line": ("optimizers", {"optimizer": "optimizer, second = torch.optim.Adam(list(model.body.parameters()) + list(model.a.parameters()), lr=1e-2), torch.optim.Adam(model.b.parameters(), lr=1e-3)", "forward": "loss = F.mse_loss(model(x), y) + F.mse_loss(model(x, 1), -y)", "zero": "optimizer.zero_grad(); second.zero_grad()", "step": "optimizer.step(); second.step()"}, {}),
    "scaler": ("optimizers", {"helpers": "scaler = torch.amp.GradScaler('cpu', enabled=False)", "forward": "with torch.autocast('cpu', dtype=torch.bfloat16):\n    loss = F.mse_loss(model(x).float(), y)", "step": "scaler.step(optimizer)\nscaler.update()"}, {}),
    "own_sgd": ("optimizers", {"zero": "model.zero_grad()", "step": "with torch.no_grad():\n    for p in model.parameters():\n        if p.grad is not None:\n            p -= 0.05 * p.grad"}, {}),
    "grad_none_read": ("optimizers", {"zero": ZEROS["kept"], "after": "history.append(sum(p.grad is None for p in model.parameters()))", "end": "print(history)"}, {}),
    "sgd_gets_momentum": ("optimizers", {"optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)", "zero": ZEROS["kept"], "forward": "loss = F.mse_loss(model(x, int(step % 3 == 0)), y)", "after": "if step == 12:\n    optimizer.param_groups[0]['momentum'] = 0.9"}, {"zero-grad-none": "an idle head keeps its momentum once the group has some"}),
    "gradients_counted": ("optimizers", {"optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)", "zero": ZEROS["kept"], "forward": "loss = F.mse_loss(model(x, int(step % 3 == 0)), y)", "before_step": "for p in model.b.parameters():\n    if p.grad is not None:\n        history.append(p.grad.norm().item())", "end": "print(len(history))"}, {"zero-grad-none": "the list grows by each gradient that there is"}),
    "gradients_shown_when_zeroed": ("optimizers", {"zero": "", "forward": "loss = F.mse_loss(model(x) + model(x, 1), y)", "after": "optimizer.zero_grad(set_to_none=False)\nfor name, p in model.named_parameters():\n    if p.grad is not None:\n        print(name, float(p.grad.abs().sum()))"}, {"zero-grad-none": "zeros are shown between `zero_grad` and `backward`"}),
    "assert_loose": ("control flow", {"check": "assert torch.isfinite(loss), f'loss {loss.item()} at {step}'"}, {}),
    "assert_fails": ("control flow", {"forward": "loss = F.mse_loss(model(x), y) * (1 if step < 15 else float('nan'))", "check": "assert torch.isfinite(loss), f'loss is {loss.item()} at step {step}'"}, {"drop-debug": "the assertion ends the program with a message"}),
    "assert_caught": ("control flow", {"forward": "loss = F.mse_loss(model(x), y) * (1 if step < 15 else float('nan'))", "check": "assert torch.isfinite(loss), f'bad at step {step}'", "call": "try:\n    train()\nexcept AssertionError as error:\n    print('stopped:', error)"}, {"drop-debug": "the assertion is caught"}),
    "raises_nan": ("control flow", {"forward": "loss = F.mse_loss(model(x), y) * (1 if step < 15 else float('nan'))", "check": "if torch.isnan(loss):\n    raise ValueError(f'nan at {step}')", "call": "try:\n    train()\nexcept ValueError as error:\n    print(error)"}, {}),
    "skips_nan": ("control flow", {"forward": "loss = F.mse_loss(model(x), y) * (float('nan') if step % 7 == 6 else 1)", "check": "if not math.isfinite(loss.item()):\n    print('skip', step)\n    continue"}, {}),
    "anomaly": ("control flow", {"start": "torch.autograd.set_detect_anomaly(True)"}, {}),
    "anomaly_needed": ("control flow", {"start": "torch.autograd.set_detect_anomaly(True)", "forward": "root = torch.sqrt(model(x) * (0 if step == 15 else 1) + (0 if step == 15 else 9))\nloss = (root * (0 if step == 15 else 1) - y * (step != 15)).square().mean() + (0 * root).sum()", "call": "try:\n    train()\nexcept RuntimeError as error:\n    print('backward:', str(error)[:40])"}, {"drop-debug": "the program catches what anomaly detection raises"}),
    "early_stop": ("control flow", {"start": "best, bad = float('inf'), 0", "after": "value = loss.item()\nif value < best:\n    best, bad = value, 0\nelse:\n    bad += 1\nif bad > 3:\n    print('stop', step)\n    break"}, {}),
    "clock": ("control flow", {"start": "begun = time.perf_counter()", "after": "if step == 11:\n    print(f'took {time.perf_counter() - begun:.3f} s')"}, {}),
    "curriculum": ("control flow", {"start": "hard = 1", "forward": "loss = F.mse_loss(model(x * (torch.arange(6) < hard)), y)", "after": "if loss.item() < 0.6:\n    hard = min(6, hard + 1)\n    print('hard', hard)"}, {}),
    "hook_prints": ("control flow", {"helpers": "def note(module, args, out):\n    history.append(float(out.mean()))\n\nmodel.a.register_forward_hook(note)", "end": "print(len(history), f'{sum(history):.5f}')"}, {}),
    "hook_raises": ("exceptions", {"helpers": "def watch(module, args, out):\n    if not torch.isfinite(out).all():\n        raise FloatingPointError('output')\n\nmodel.a.register_forward_hook(watch)", "forward": "loss = F.mse_loss(model(x * (1 if step < 15 else float('inf'))), y)", "call": "try:\n    train()\nexcept FloatingPointError as error:\n    print('caught', error, len(history))"}, {"drop-debug": "what the hook raises is caught"}),
    "retained": ("control flow", {"after": "history.append(loss)", "end": "print(f'{float(sum(history)):.5f}', history[0].requires_grad)"}, {}),
    "retained_graph": ("control flow", {"start": "before = torch.zeros(())", "forward": "loss = F.mse_loss(model(x), y) + 0.1 * before", "after": "before = loss.detach()"}, {}),
    "item_in_message": ("exceptions", {"after": "history.append(loss.item())\nif step == 15:\n    raise RuntimeError(f'at {step}: {history[-1]:.5f}')"}, {}),
    "interrupt_saves": ("exceptions", {"after": "history.append(loss.item())", "call": "try:\n    train()\nexcept KeyboardInterrupt:\n    torch.save({'model': model.state_dict(), 'history': history}, 'stopped.pt')\n    print('interrupted after', len(history))"}, {}),
    "finally_writes": ("exceptions", {"after": "history.append(loss.item())", "call": "try:\n    train()\nfinally:\n    with open('history.json', 'w') as f:\n        json.dump(history, f)"}, {}),
    "finally_sums": ("exceptions", {"start": "total = 0.0\ntry:\n    for step in range(6):\n        loss = F.mse_loss(model(torch.randn(8, 6)), torch.zeros(8, 1))\n        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n        total += loss.item()\nfinally:\n    print('total', f'{total:.6f}')"}, {}),
    "out_of_memory": ("exceptions", {"check": "if step == 13:\n    try:\n        raise torch.OutOfMemoryError('made up')\n    except torch.OutOfMemoryError as error:\n        print('skip', error)\n        torch.cuda.empty_cache()\n        continue"}, {}),
    "context_manager": ("exceptions", {"helpers": "class Log:\n    def __enter__(self):\n        self.rows = []\n        return self\n\n    def __exit__(self, *error):\n        with open('rows.csv', 'w', newline='') as f:\n            csv.writer(f).writerows(self.rows)\n\n\nlog = Log()", "after": "log.rows.append((step, loss.item()))", "call": "with log:\n    train()"}, {}),
    "exits": ("exceptions", {"after": "history.append(loss.item())\nif step == 14:\n    print(sum(history) / len(history))\n    sys.exit(2)"}, {}),
    "signal_flag": ("exceptions", {"start": "stop = False", "after": "if step == 10:\n    stop = True\nif stop:\n    torch.save(model.state_dict(), 'signal.pt')\n    print('asked to stop', f'{loss.item():.5f}')\n    return"}, {}),
    "warns": ("exceptions", {"after": "history.append(loss.item())\nif history[-1] > 1.2:\n    print('high loss', step, f'{history[-1]:.4f}', file=sys.stderr)"}, {}),
    "exhausted": ("exceptions", {"start": "batches = iter([torch.randn(8, 6) for _ in range(16)])", "forward": "try:\n    x = next(batches)\nexcept StopIteration:\n    print('no more', step)\n    break\nloss = F.mse_loss(model(x), x.mean(1, keepdim=True))"}, {}),
}  # fmt: skip


def programs() -> Iterator[Program]:
    """All members of the three families."""
    for name, made in OPTIMIZERS.items():
        for zero, lines in ZEROS.items():
            for head, forward in HEADS.items():
                made_of = made.replace("<p>", "model.parameters()")
                why = {"zero-grad-none": "the idle head is no longer decayed"} if head == "idle_head" else {}
                parts = {"optimizer": f"optimizer = {made_of}", "zero": lines, "forward": forward}
                if name in ("sgd", "adagrad", "rmsprop"):
                    why = {}
                if name == "momentum" and head == "idle_head":
                    why = {**why, "fused-optimizer": "momentum of a gradient that comes first in a later step"}
                yield _program(f"step_{name}_{zero}_{head}", "optimizers", parts, why)
    for name, (family, parts, why) in VARIANTS.items():
        edited = frozenset({"defer-item"} if name == "gains_logged" else ())
        yield _program(f"loop_{name}", family, parts, why, edited)


def _program(
    name: str, family: str, parts: dict[str, str], why: dict[str, str], edited: frozenset[str] = frozenset()
) -> Program:
    return Program(name, family, fill(LOOP, **{**DEFAULT, **parts}), edited, why)
