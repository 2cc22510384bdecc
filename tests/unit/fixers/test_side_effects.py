"""What a program may notice of an edit beside its numbers: the edit is left alone, and the line is named."""

from __future__ import annotations

import pytest

from diagnose.fixer import Advice, Edits, Gate, Request, example_request
from diagnose.plugins import load

FIXERS = load().fixers
LOOP = "for step in range(9):\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"
SAVE = "    torch.save({'model': model.state_dict()}, 'last.pt')\n"
TOP = "import glob, io, os, shutil, signal, subprocess, threading, time, torch\n"


def answer(name: str, **files: str) -> object:
    request = example_request("periodic-stall", files["train"])
    sources = {f"{name}.py": text for name, text in files.items()}
    return FIXERS[name].rewrite(Request(request.finding, sources, entry="train.py", home=""))


@pytest.mark.parametrize(
    ("before", "after_save", "after"),
    [
        ("", "    os.replace('last.pt', 'best.pt')\n", ""),
        ("", "    print(os.path.getsize('last.pt'))\n", ""),
        ("", "    print(len(glob.glob('*.pt')))\n", ""),
        ("", "    print(os.listdir('.'))\n", ""),
        ("", "    os.system('cp last.pt mirror.bin')\n", ""),
        ("", "    subprocess.run(['sync'])\n", ""),
        ("", "    client.upload_file('last.pt', 'bucket')\n", ""),
        ("", "    publish('last.pt')\n", ""),
        ("def back():\n    return torch.load('last.pt')\n", "    back()\n", ""),
        ("", "    threading.Thread(target=watch).start()\n", ""),
        ("signal.signal(signal.SIGTERM, stop)\n", "", ""),
        ("", "    if step == 5:\n        os._exit(0)\n", ""),
        (
            "class Config:\n    def __getstate__(self):\n        return {}\n",
            "    torch.save({'c': c}, 'last.pt')\n",
            "",
        ),
    ],
)
def test_a_save_waits_where_the_program_may_notice(before: str, after_save: str, after: str) -> None:
    found = answer("async-checkpoint", train=TOP + before + LOOP + SAVE + after_save + after)
    assert isinstance(found, Advice)
    assert "train.py:" in found.text


def test_a_load_in_another_file_above_the_save_is_found() -> None:
    utils = "import torch\ndef back(p):\n    return torch.load(p)\ndef keep(m, p):\n    torch.save(m.state_dict(), p)\n"
    train = "from utils import back, keep\n" + LOOP + "    keep(model, 'a.pt')\n    if bad: back('a.pt')\n"
    found = answer("async-checkpoint", train=train, utils=utils)
    assert isinstance(found, Advice)
    assert "utils.py:3" in found.text or "train.py:" in found.text


@pytest.mark.parametrize(
    ("before", "after_save", "after"),
    [
        ("", "    print('saved last.pt', step)\n", ""),
        ("state = torch.load('last.pt')\n", "", ""),
        ("", "", "print(torch.load('last.pt'))\n"),
        ("", "    with open('log.json', 'w') as file:\n        file.write(str(step))\n", ""),
    ],
)
def test_a_save_that_nothing_meets_is_edited(before: str, after_save: str, after: str) -> None:
    found = answer("async-checkpoint", train=TOP + before + LOOP + SAVE + after_save + after)
    assert isinstance(found, Edits)
    assert list(found.files) == ["train.py"]
    assert "finish_saving()\n" in found.files["train.py"]


def test_a_return_and_a_later_save_wait() -> None:
    loop = "".join(f"    {line}\n" for line in LOOP.splitlines())
    train = (
        "import torch\ndef keep(p):\n    torch.save(model.state_dict(), p)\ndef fit():\n"
        + loop
        + "        keep('a.pt')\n        if step > 3:\n            return step\nfit()\nkeep('final.pt')\n"
    )
    found = answer("async-checkpoint", train=train)
    assert isinstance(found, Edits)
    text = found.files["train.py"]
    assert "            finish_saving()\n            return step\n" in text
    assert text.endswith("keep('final.pt')\nfinish_saving()\n")


ZERO = "import torch\nfrom torch import nn\n{}for x in loader:\n    {}\n    optimizer.zero_grad(set_to_none=False)\n    loss.backward()\n    optimizer.step()\n"  # noqa: E501 - one program
STACK = "model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))\n"
DECAYED = STACK + "optimizer = torch.optim.AdamW(model.parameters())\n"
PLAIN = STACK + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"


@pytest.mark.parametrize(
    ("built", "step", "gate"),
    [
        (DECAYED, "loss = model(x).mean()", None),
        (PLAIN, "loss = heads[task](x).mean()", None),
        (DECAYED, "loss = (a(x) if task else b(x)).mean()", Gate.TRAINING),
        (DECAYED, "outs = model(x); loss = outs[task].mean()", Gate.TRAINING),
        (DECAYED, "loss = model.other(x).mean()", Gate.TRAINING),
        (DECAYED + "model[0].weight.requires_grad_(False)\n", "loss = model(x).mean()", Gate.TRAINING),
        (DECAYED.replace("AdamW(", "SGD(").replace("())", "(), momentum=0.9)"), "loss = f(x)[t]", Gate.TRAINING),
    ],
)
def test_gradients_are_freed_bitwise_only_where_none_is_left_over(built: str, step: str, gate: Gate | None) -> None:
    found = answer("zero-grad-none", train=ZERO.format(built, step))
    assert isinstance(found, Edits)
    assert found.gate is gate
    assert bool(found.because) is (gate is not None)


WAIT = "    torch.cuda.synchronize()\n"


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ("def now():\n    return time.perf_counter()\n", "    seen = now()\n"),
        ("clock = time.perf_counter\n", "    seen = clock()\n"),
        ("cpu = torch.device('cpu')\n", "    host = loss.to(cpu, non_blocking=True)\n"),
        ("begin = torch.cuda.Event(enable_timing=True)\n", "    if step % 9 == 0: print(begin.elapsed_time(end))\n"),
        ("class T:\n    def __enter__(self):\n        self.t = time.time()\n", "    with T():\n        pass\n"),
    ],
)
def test_a_wait_stays_where_something_may_rest_on_it(before: str, step: str) -> None:
    found = answer("drop-synchronize", train=TOP + before + LOOP + WAIT + step)
    assert isinstance(found, Advice)
    assert isinstance(answer("drop-synchronize", train=TOP + LOOP + WAIT), Edits)


def test_all_optimizers_of_a_line_are_fused() -> None:
    train = "from torch.optim import Adam\na, b = Adam(f.parameters(), lr=1), Adam(g.parameters(), lr=2)\n"
    found = answer("fused-optimizer", train=train)
    assert isinstance(found, Edits)
    assert found.files["train.py"].count("fused=True") == 2
