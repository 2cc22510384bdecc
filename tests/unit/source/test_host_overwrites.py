"""A copy to the device needs a wait where the host writes to the same memory behind it, by whatever name."""

from __future__ import annotations

import pytest
from rewriting import FIXERS

from diagnose.fixer import Edits, Facts, Site, example_request

_TOP = "import torch\nfrom torch.utils.data import DataLoader\n\nfor x in DataLoader(data, pin_memory=True):\n"
_STEP = "    loss = model(y)\n    loss.backward()\n    optimizer.step()\n"


@pytest.mark.parametrize(
    ("copy", "edited"),
    [
        ("    v = x.view(-1, 4)\n    y = v.to('cuda')\n    x.zero_()\n", False),
        ("    y = x[:2].to('cuda')\n    x.zero_()\n", False),
        ("    v = x.view(-1, 4)\n    y = x.to('cuda')\n    v.zero_()\n", False),
        ("    v = x.t()\n    y = v.to('cuda')\n    x.zero_()\n", False),
        ("    v = x.transpose(0, 1).detach()\n    y = x.to('cuda')\n    v[0] = 0\n", False),
        ("    v = torch.permute(x, (1, 0))\n    y = v.to('cuda')\n    x.zero_()\n", False),
        ("    v = x.numpy()\n    y = x.to('cuda')\n    v[:] = 0\n", False),
        ("    v = torch.from_numpy(x.numpy())\n    y = v.to('cuda')\n    x += 1\n", True),  # a pinned copy of it
        ("    v = x.clone()\n    y = x.to('cuda')\n    v.zero_()\n", True),
        ("    v = x.sum(0)\n    y = x.to('cuda')\n    v.zero_()\n", True),
        ("    y = x.to('cuda')\n    other.zero_()\n", True),
        ("    y = x.to('cuda')\n", True),
    ],
)
def test_a_view_is_memory_of_its_tensor(copy: str, edited: bool) -> None:
    text = _TOP + copy + _STEP
    lines = [number for number, line in enumerate(text.splitlines(), 1) if ".to(" in line]
    site = Site("DataLoader", "train.py", 4, arguments={"pin_memory": True})
    facts = Facts(device_name="NVIDIA H200")
    request = example_request("pageable-copies", text, sites=[site], facts=facts, lines=lines)
    answer = FIXERS["nonblocking-copies"].rewrite(request)
    assert (isinstance(answer, Edits) and "non_blocking" in answer.files["train.py"]) is edited, answer
