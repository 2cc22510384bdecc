"""Where values of bfloat16 would reach NumPy, which lacks it, or a formula that needs more bits, no autocast is put."""

from __future__ import annotations

import pytest
from autocast_requests import FLAT, fixed

from diagnose.fixer import Advice, Edits


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("    print(np.asarray(outputs.detach()))\n", True),
        ("    chances = torch.sigmoid(outputs)\n    print(chances.detach().cpu().numpy())\n", True),
        ("    formats.append(outputs.detach())\nprint(np.concatenate([each.numpy() for each in formats]))\n", True),
        ("    formats.extend(outputs.detach())\nprint(np.stack([each.numpy() for each in formats]))\n", True),
        ("    kept.last = outputs\n    note(labels, kept.last)\n    show()\n", True),
        ("    kept.last = outputs\n    print(kept.last.shape, kept.last.argmax(1).numpy())\n", False),
        ("    note(outputs.detach(), labels)\n", True),
        ("    best, which = outputs.max(1)\n    print(best.detach().numpy())\n", True),
        ("    best, which = outputs.max(1)\n    print(which.numpy())\n", False),
        ("    print(outputs.argmax(1).numpy(), (outputs.argmax(1) == labels).numpy())\n", False),
        ("    print(outputs.detach().float().numpy())\n", False),
        ("    print(outputs.detach().to(torch.float32).numpy())\n", False),
        ("    wide = outputs.detach().float()\n    print(np.asarray(wide))\n", False),
        ("    formats.append(loss.item())\nprint(np.mean(formats))\n", False),
        ("    print(labels.numpy(), inputs.numpy())\n", False),
    ],
)
def test_a_half_value_that_reaches_numpy_is_left_alone(line: str, refused: bool) -> None:
    note = "def note(values, labels):\n    print(values.cpu().numpy(), labels.numpy())\n\n\n"
    note += "def show():\n    print(kept.last.detach().numpy())\n\n\n" if "show()" in line else ""
    text = "import numpy as np\n" + FLAT.replace("device = torch.d", note + "device = torch.d") + line
    answer = fixed(text)
    assert isinstance(answer, Advice if refused else Edits), answer
    assert not refused or "NumPy" in getattr(answer, "text", "")


_RETURNED = """
def update(inputs, labels):
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, outputs


for step in range(4):
    loss, outputs = update(torch.randn(4, 8), torch.randint(4, (4,)))
    print({})
"""


@pytest.mark.parametrize(
    ("shown", "refused"), [("outputs.detach().numpy()", True), ("outputs.argmax(1).numpy(), loss.item()", False)]
)
def test_a_half_value_that_a_step_returns_to_numpy_is_left_alone(shown: str, refused: bool) -> None:
    answer = fixed(FLAT.partition("for step")[0] + _RETURNED.format(shown))
    assert isinstance(answer, Advice if refused else Edits), answer


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        ("-torch.log(1 - torch.sigmoid(outputs) + 1e-15).mean()", True),
        ("-(1.0 - outputs.sigmoid().clamp(1e-4, 1 - 1e-4)).log().mean()", True),
        ("-torch.log(1 - torch.sigmoid(outputs).float()).mean()", False),
        ("-torch.log(torch.sigmoid(outputs) + 1e-15).mean()", False),
        ("(1 - outputs).mean() + torch.log1p(outputs.exp()).mean()", False),
    ],
)
def test_what_a_rounded_probability_leaves_to_one_may_be_nothing(loss: str, refused: bool) -> None:
    line = next(line for line in FLAT.splitlines() if "loss = " in line)
    answer = fixed(FLAT.replace(line, f"    loss = {loss}"))
    assert isinstance(answer, Advice if refused else Edits), answer


def test_a_program_that_moves_no_parameters_trains_nothing() -> None:
    cam = "import torch\n\ndef seen(model, x):\n    loss = model(x).max()\n    loss.backward()\n    return hooked\n"
    assert fixed(cam) is None
    assert isinstance(fixed(cam.replace("return hooked", "return x.grad")), Edits)
