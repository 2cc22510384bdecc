"""Programs of two ranks that talk through gloo."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "distributed"
LOOP = """
import contextlib, json
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = <model>
<wrap>
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(10 + rank)
total = 0.0
for step in range(12):
    x = torch.randn(8, 6)
    <forward>
    <step>
    total += loss.item()
    <after>
print(rank, f"{total / 12:.6f}")
<end>
dist.destroy_process_group()
"""
PLAIN = "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))"
NORM = "nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))"
STEP = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()"
FORWARD = "loss = (model(x) - x.sum(1, keepdim=True)).square().mean()"
AVERAGED = "optimizer.zero_grad()\nloss.backward()\nfor p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world\noptimizer.step()"
MEMBERS: dict[str, dict[str, str]] = {
    "ddp": {"wrap": "model = DDP(model)"},
    "ddp_unused": {"wrap": "model = DDP(model, find_unused_parameters=True)"},
    "ddp_norm": {"model": NORM, "wrap": "model = DDP(model)", "end": "model.eval()\nprint(f'{float(model(torch.ones(2, 6)).sum()):.6f}')"},
    "ddp_micro_steps": {"wrap": "model = DDP(model)", "step": "(loss / 3).backward()\nif step % 3 == 2:\n    optimizer.step()\n    optimizer.zero_grad()"},
    "ddp_micro_steps_tail": {"wrap": "model = DDP(model)", "step": "(loss / 5).backward()\nif step % 5 == 4 or step == 11:\n    optimizer.step()\n    optimizer.zero_grad()"},
    "ddp_gradient_read": {"wrap": "model = DDP(model)", "step": "(loss / 3).backward()\nprint(rank, f'{float(model.module[0].weight.grad.abs().sum()):.6f}')\nif step % 3 == 2:\n    optimizer.step()\n    optimizer.zero_grad()"},
    "ddp_saves": {"wrap": "model = DDP(model)", "after": "if step % 4 == 3 and rank == 0:\n    torch.save(model.module.state_dict(), 'last.pt')\ndist.barrier()", "end": "state = torch.load('last.pt')\nprint(rank, f\"{float(state['0.bias'].sum()):.6f}\")"},
    "ddp_logs": {"wrap": "model = DDP(model)", "after": "mean = loss.detach().clone()\ndist.all_reduce(mean)\nif step % 3 == 0 and rank == 0:\n    print(step, f'{mean.item() / world:.6f}')"},
    "by_hand": {"step": AVERAGED},
    "by_hand_sum": {"step": AVERAGED.replace("    p.grad /= world\n", "")},
    "by_hand_broadcast": {"wrap": "for p in model.parameters():\n    dist.broadcast(p.data, 0)", "step": AVERAGED},
    "by_hand_copied": {"step": AVERAGED, "after": "if step == 5:\n    import copy\n    best = copy.deepcopy(model)", "end": "print(sorted(best.state_dict()), len(model), model[0].weight.shape, model)"},
    "by_hand_held": {"wrap": "parts = {'net': model}", "step": AVERAGED, "end": "print(sorted(parts['net'].state_dict()))"},
    "by_hand_begins_apart": {"wrap": "torch.manual_seed(100 + rank)\nwith torch.no_grad():\n    for p in model.parameters():\n        p.add_(0.1 * torch.randn_like(p))", "step": AVERAGED},
    "ddp_disturbed_and_sent": {"wrap": "model = DDP(model)", "after": "with torch.no_grad():\n    for p in model.parameters():\n        p.add_(0.01 * torch.randn_like(p))\nfor p in model.parameters():\n    dist.broadcast(p.data, 0)"},
    "ddp_rate_of_rank_sent": {"wrap": "model = DDP(model)", "step": STEP.replace("optimizer.step()", "optimizer.param_groups[0]['lr'] = 0.05 * (1 + rank)\noptimizer.step()"), "after": "for p in model.parameters():\n    dist.broadcast(p.data, 0)"},
    "ddp_sent": {"wrap": "model = DDP(model)", "after": "for p in model.parameters():\n    dist.broadcast(p.data, 0)"},
    "ddp_freezes": {"wrap": "model = DDP(model)", "forward": "if step == 6:\n    model.module[0].requires_grad_(False)\n" + FORWARD},
    "ddp_stops_together": {"wrap": "model = DDP(model)", "after": "flag = torch.tensor(float(loss.item() < 0.5))\ndist.all_reduce(flag)\nif flag.item() > 0:\n    print(rank, 'stops', step)\n    break"},
}  # fmt: skip
EDITED = {"by_hand_copied": "use-ddp", "ddp_sent": "drop-broadcast"}
LEFT_ALONE = {
    "by_hand_held": ("use-ddp", "the model is read under another name"),
    "by_hand_begins_apart": ("use-ddp", "ranks begin with other weights"),
    "ddp_disturbed_and_sent": ("drop-broadcast", "each rank disturbs its weights"),
    "ddp_rate_of_rank_sent": ("drop-broadcast", "each rank steps at a rate of its own"),
}


def programs() -> Iterator[Program]:
    """All members of the family."""
    slots = {"model": PLAIN, "wrap": "", "forward": FORWARD, "step": STEP, "after": "", "end": ""}
    for name, parts in MEMBERS.items():
        text = fill(LOOP, **{**slots, **parts})
        edited = frozenset({EDITED[name]} if name in EDITED else ())
        left = dict([LEFT_ALONE[name]]) if name in LEFT_ALONE else {}
        yield Program(f"ranks_{name}", FAMILY, text, edited, left_alone=left, ranks=2)
