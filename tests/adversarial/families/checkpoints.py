"""Programs that save while they train, and read, move, list or send what they saved."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

FAMILY = "checkpoints"

LOOP = """
import copy, glob, hashlib, io, json, os, shutil, subprocess, sys
import torch
from torch import nn

torch.manual_seed(0)
os.makedirs("out", exist_ok=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


<helpers>


best = float("inf")
kept = []
for step in range(24):
    loss = (model(torch.randn(8, 64)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        <save>
        <after_save>
    <in_step>
print("loss", f"{loss.item():.6f}")
<end>
"""

FUNCTIONS = """
import copy, glob, hashlib, io, json, os, shutil, subprocess, sys
import torch
import torch.nn as nn


<helpers>


def train(model, optimizer, epochs):
    best = float("inf")
    kept = []
    step = 0
    for epoch in range(epochs):
        for _ in range(6):
            loss = (model(torch.randn(8, 64)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            <in_step>
        <save>
        <after_save>
        print(epoch, f"{loss.item():.6f}")
    <end>


def main():
    torch.manual_seed(0)
    os.makedirs("out", exist_ok=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 4)


if __name__ == "__main__":
    main()
"""

STATE = '{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}'
PLAIN = f'torch.save({STATE}, "out/last.pt")'
NUMBERED = 'torch.save(model.state_dict(), f"out/{step:03d}.pt")'
USES: dict[str, dict[str, str]] = {
    "plain": {"save": PLAIN},
    "numbered": {"save": NUMBERED},
    "loaded_at_end": {"save": PLAIN, "end": 'print(torch.load("out/last.pt")["step"])'},
    "rolled_back": {
        "save": PLAIN,
        "in_step": 'if step % 9 == 8 and os.path.exists("out/last.pt"):\n    state = torch.load("out/last.pt")\n'
        '    model.load_state_dict(state["model"])\n    print("back to", state["step"])',
    },
    "helper_above": {
        "helpers": 'def load(path):\n    return torch.load(path)["step"]\n\n\ndef save(path, state):\n    torch.save(state, path)',
        "save": f'save("out/last.pt", {STATE})',
        "after_save": 'print("saved", load("out/last.pt"))',
    },
    "replaced": {"save": f'torch.save({STATE}, "out/tmp.pt")', "after_save": 'os.replace("out/tmp.pt", "out/last.pt")'},
    "renamed": {
        "save": f'torch.save({STATE}, "out/tmp.pt")',
        "after_save": 'os.rename("out/tmp.pt", f"out/{step}.pt")',
    },
    "copied": {"save": PLAIN, "after_save": 'shutil.copy("out/last.pt", "out/best.pt")'},
    "size_shown": {"save": PLAIN, "after_save": 'print("bytes", os.path.getsize("out/last.pt") > 1000)'},
    "listed": {"save": NUMBERED, "after_save": 'print(sorted(os.listdir("out")))'},
    "oldest_removed": {
        "save": NUMBERED,
        "after_save": 'found = sorted(glob.glob("out/*.pt"))\nfor old in found[:-2]:\n    os.remove(old)',
    },
    "hashed": {
        "save": PLAIN,
        "after_save": 'with open("out/last.pt", "rb") as f:\n    print(len(hashlib.sha256(f.read()).hexdigest()))',
    },
    "sent_by_shell": {
        "save": PLAIN,
        "after_save": 'subprocess.run(["cp", "out/last.pt", f"out/sent{step}.pt"], check=True)',
    },
    "sent_by_system": {"save": PLAIN, "after_save": 'print("status", os.system("cp out/last.pt out/mirror.pt"))'},
    "noted_in_json": {
        "save": NUMBERED,
        "after_save": 'kept.append(step)\nwith open("out/index.json", "w") as f:\n    json.dump(kept, f)',
    },
    "linked": {
        "save": NUMBERED,
        "after_save": 'if os.path.lexists("latest"):\n    os.remove("latest")\nos.symlink(os.path.abspath(f"out/{step:03d}.pt"), "latest")\nprint(os.path.exists("latest"))',
    },
    "whole_model": {
        "save": 'torch.save(model, "out/model.pt")',
        "end": 'print(type(torch.load("out/model.pt", weights_only=False)).__name__)',
    },
    "best_kept": {
        "save": 'if loss.item() < best:\n    best = loss.item()\n    torch.save(model.state_dict(), "out/best.pt")\n    print("best", f"{best:.5f}")',
        "end": 'model.load_state_dict(torch.load("out/best.pt"))\nprint(f"{float(sum(p.double().sum() for p in model.parameters())):.6f}")',
    },
    "buffer": {
        "save": "buffer = io.BytesIO()\ntorch.save(model.state_dict(), buffer)\nkept.append(buffer.getvalue())",
        "end": 'print(len(kept), torch.load(io.BytesIO(kept[0]))["0.bias"].shape)',
    },
    "open_file": {"save": f'with open("out/last.pt", "wb") as f:\n    torch.save({STATE}, f)\n    print(f.tell() > 0)'},
    "alias_kept": {
        "save": "kept.append(model.state_dict())",
        "end": 'torch.save(kept[0], "out/first.pt")\nprint(torch.equal(kept[0]["0.bias"], kept[-1]["0.bias"]))',
    },
    "copy_kept": {
        "save": "kept.append(copy.deepcopy(model.state_dict()))",
        "end": 'torch.save(kept[0], "out/first.pt")\nprint(torch.equal(kept[0]["0.bias"], kept[-1]["0.bias"]))',
    },
    "saved_then_exits": {"save": PLAIN, "in_step": 'if step == 18:\n    print("budget spent")\n    sys.exit(3)'},
    "saved_then_hard_exit": {"save": PLAIN, "in_step": "if step == 16:\n    sys.stdout.flush()\n    os._exit(4)"},
    "save_may_fail": {
        "save": f'try:\n    torch.save({STATE}, "missing/last.pt" if step > 9 else "out/last.pt")\nexcept (OSError, RuntimeError) as error:\n    print("cannot save", type(error).__name__)',
    },
    "mutated_after": {
        "save": f'state = {STATE}\ntorch.save(state, "out/last.pt")',
        "after_save": 'state["step"] = -1\nwith torch.no_grad():\n    model[0].bias.zero_()',
    },
}


def programs() -> Iterator[Program]:
    """All members of the family."""
    slots = dict.fromkeys(("helpers", "save", "after_save", "in_step", "end"), "")
    for loop, template in {"script": LOOP, "function": FUNCTIONS}.items():
        for name, parts in USES.items():
            yield Program(f"save_{loop}_{name}", FAMILY, fill(template, **{**slots, **parts}))
