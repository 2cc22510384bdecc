"""Where autocast goes in programs of different build, and that they still train with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from autocast_requests import FIXER, FLAT, FLOAT32, fixed

from diagnose.fixer import Advice, Answer, Edits, Facts, Request, example_request
from diagnose.model import Site

torch = pytest.importorskip("torch")
SICKBAY = Path(__file__).resolve().parents[3] / "benchmarks" / "sickbay"


def text_of(answer: Answer) -> str:
    assert isinstance(answer, Edits), answer
    return answer.files["train.py"]


def ran(text: str) -> dict[str, object]:
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    return names


METHODS = '''\
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.device = "cpu"
        self.model = nn.Linear(8, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.formats = []

    def compute_loss(self, batch):
        """Mean square
        of everything."""
        out = self.model(batch)
        return out, out.float().square().mean()

    def fit(self, steps):
        for step in range(steps):
            batch = torch.randn(4, 8)

            # Forward: the text below holds its
            # own lines.
            note = """first
    second"""
            out, loss = self.compute_loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.formats.append((out.dtype, loss.dtype, self.model.weight.dtype))


trainer = Trainer()
trainer.fit(3)
formats = trainer.formats
'''

ACCUMULATING = """\
import torch


def main(steps=2, accumulate=2, device_type="cuda"):
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    formats = []
    for step in range(steps):
        for micro_step in range(accumulate):
            x = torch.ones(2, 8)
            logits = model(x)
            loss = logits.float().square().mean()
            loss = loss / accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        formats.append((logits.dtype, loss.dtype, model.weight.dtype))
    return formats


formats = main()
"""


@pytest.mark.parametrize("text", [FLAT, METHODS, ACCUMULATING], ids=["flat", "methods", "accumulating"])
def test_the_model_computes_in_bfloat16_and_the_loss_and_parameters_stay(text: str) -> None:
    after = text_of(fixed(text)).replace('"cuda", dtype', '"cpu", dtype').replace("'cuda', dtype", "'cpu', dtype")
    formats = ran(after)["formats"]
    assert formats
    assert set(formats) == {(torch.bfloat16, torch.float32, torch.float32)}  # type: ignore[call-overload]
    assert set(ran(text)["formats"]) == {(torch.float32,) * 3}  # type: ignore[call-overload]
    assert "autocast" in after
    for line in text.splitlines():
        assert line.strip() in after


def test_lines_within_a_string_keep_their_white_space() -> None:
    text = FLAT.replace("model(inputs)", 'model(inputs, """a\n  b""")[0]')
    after = text_of(fixed(text))
    assert (
        '        outputs = model(inputs, """a\n  b""")[0]\n        loss = criterion(outputs, labels)\n    optimizer'
        in after
    )


def test_the_device_has_the_name_that_the_program_gives_it() -> None:
    assert "with torch.autocast(device.type, dtype=torch.bfloat16):" in text_of(fixed(FLAT))
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16):' in text_of(fixed(METHODS))
    assert "with torch.autocast(device_type=device_type, dtype=torch.bfloat16):" in text_of(fixed(ACCUMULATING))


LENT = """\
import torch
from torch import nn


def train(model, optimizer, device):
    for step in range(4):
        loss = model(torch.randn(4, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    device = torch.device("cpu")
    model = nn.Linear(8, 4)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), device)


main()
"""


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (LENT, "device.type"),
        (LENT.replace("lr=0.1), device)", "lr=0.1), 'cpu')"), '"cuda"'),
        (LENT.replace("def train(model, optimizer, device)", "def train(model, optimizer, place)"), '"cuda"'),
        (METHODS.replace("trainer = Trainer", 'device = "cuda" if True else "cpu"\ntrainer = Trainer'), "device"),
        (METHODS + '\n\ndef other():\n    device = "cuda" if True else "cpu"\n    return device\n', '"cuda"'),
        (METHODS + '\n\nclass Config:\n    device = torch.device("cpu")\n', '"cuda"'),
    ],
    ids=["handed on", "given as text", "under another name", "of the module", "of another function", "of a class"],
)
def test_the_device_is_named_where_the_step_can_read_it(text: str, device: str) -> None:
    assert f"with torch.autocast({device}, dtype=torch.bfloat16):" in text_of(fixed(text))


def test_the_whole_step_is_found_in_the_naive_gpt() -> None:
    after = text_of(fixed((SICKBAY / "naive_gpt" / "train.py").read_text()))
    wrapped = (SICKBAY / "naive_gpt" / "expert.py").read_text().split("with torch.autocast")[1].split("optimizer.")[0]
    assert wrapped.strip() in after


NANOGPT = """\
import torch
from contextlib import nullcontext
{setting}
config_keys = [k for k, v in globals().items() if not k.startswith('_') and isinstance(v, (int, float, bool, str))]
exec(open('configurator.py').read()) # overrides from command line or config file
device_type = 'cuda' if 'cuda' in device else 'cpu' # for later use in torch.autocast
ptdtype = {{'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}}[dtype]
ctx = nullcontext() if device_type == 'cpu' else torch.amp.autocast(device_type=device_type, dtype=ptdtype)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == 'float16'))
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch('train')
        scaler.scale(loss).backward()
    scaler.step(optimizer)
"""


def test_a_format_that_the_program_sets_by_name_is_set_there() -> None:
    text = NANOGPT.format(setting="dtype = 'float32' # 'float32', 'bfloat16', or 'float16'")
    after = text_of(fixed(text))
    assert after == text.replace("dtype = 'float32' #", "dtype = 'bfloat16' #")


def test_a_format_that_comes_from_outside_is_advice() -> None:
    answer = fixed(NANOGPT.format(setting="dtype = 'bfloat16' if torch.cuda.is_bf16_supported() else 'float16'"))
    assert isinstance(answer, Advice)
    assert "train.py:8" in answer.text


def test_a_program_in_float16_is_told_about_bfloat16() -> None:
    scaler = Site("GradScaler", "train.py", 9, arguments={"enabled": True})
    answer = fixed(NANOGPT.format(setting="dtype = 'float16'"), scaler, facts=Facts(autocast_dtype="float16"))
    assert isinstance(answer, Advice)
    assert "GradScaler" in answer.text


_ADVERSARIES = FLAT.replace("optimizer =", "critic = nn.Linear(4, 4)\ncritic.train()\noptimizer =").replace(
    "    optimizer.step()\n",
    "    optimizer.step()\n    judged = criterion(critic(outputs.detach()), labels)\n    judged.backward()\n"
    "    chosen = outputs.argmax(1)\n    chosen.numpy()\n",
)


def test_each_of_two_adversaries_is_wrapped_by_itself() -> None:
    after = text_of(fixed(_ADVERSARIES))
    wrapped = "with torch.autocast(device.type, dtype=torch.bfloat16):\n        "
    assert f"{wrapped}outputs = model(inputs)\n        loss = criterion(outputs, labels)\n    optimizer" in after
    assert f"{wrapped}judged = criterion(critic(outputs.detach()), labels)\n    judged.backward()" in after
    ran(after)


def test_only_the_steps_that_ran_are_wrapped() -> None:
    other = FLAT.replace("for step in range(4):", "for step in range(0):")
    request = Request(
        example_request("fp32-matmul", FLAT).finding,
        {"train.py": FLAT, "other.py": other},
        (Site("backward", "train.py", 13),),
        FLOAT32,
        entry="train.py",
    )
    answer = FIXER.rewrite(request)
    assert isinstance(answer, Edits)
    assert set(answer.files) == {"train.py"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import lightning as L\nL.Trainer(max_epochs=3)\n", 'L.Trainer(max_epochs=3, precision="bf16-mixed")'),
        ("from pytorch_lightning import Trainer\nTrainer(precision=32)\n", 'Trainer(precision="bf16-mixed")'),
        (
            "from transformers import TrainingArguments\nTrainingArguments('out')\n",
            "TrainingArguments('out', bf16=True)",
        ),
        (
            "from accelerate import Accelerator\nAccelerator(mixed_precision='no')\n",
            "Accelerator(mixed_precision='bf16')",
        ),
    ],
)
def test_a_library_takes_it_as_its_argument(before: str, after: str) -> None:
    assert after in text_of(fixed(before))


EXPERTS = """\
class Experts(nn.Module):
    def forward(self, x):
        out, parts = torch.zeros_like(x), {}
        for i, expert in enumerate(self.experts):
            out[:, i] = expert(x)
            parts[expert.name] = expert(x)
            mask = self.gate(x).argmax(-1) == i
            out[mask] = expert(x[mask])
        return out


"""
GATHERED = (
    "import torch\n\nfor batch in loader:\n    losses = []\n    for part in batch:\n"
    "        losses.append(model(part).mean())\n    loss = sum(losses)\n    loss.backward()\n    optimizer.step()\n"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from transformers import TrainingArguments\nTrainingArguments('out', fp16=True)\n", "fp16"),
        (FLAT.replace("loss.backward()", "loss.backward(); optimizer.step()"), "shares its line"),
        (FLAT.replace("nn.CrossEntropyLoss()", "nn.BCELoss()"), "BCELoss"),
        (
            FLAT.replace("device = torch", "torch.set_default_dtype(torch.float64)\ndevice = torch"),
            "formats of its own",
        ),
        (FLAT + "    print(outputs.detach().numpy())\n", "NumPy"),
        (FLAT + "sums = torch.zeros(9, 4).index_add_(0, labels, outputs)\n", "`.index_add_(`"),
        (FLAT + "    seen = outputs[0].detach().cpu()\n    print(seen.numpy())\n", "NumPy"),
        (FLAT.replace("optimizer =", "model.double()\noptimizer ="), "`model.double()`"),
        (FLAT.replace("optimizer =", "net = model\nnet.double()\noptimizer ="), "`net.double()`"),
        (GATHERED, "were not found before it"),
        (EXPERTS + FLAT, "`out[mask]`"),
        (
            FLAT.replace(
                "    loss = criterion",
                "    slopes = torch.autograd.grad(outputs.sum(), model.parameters())\n    loss = criterion",
            ),
            "a backward pass",
        ),
        (
            FLAT.replace(
                "    optimizer.zero", "    loss.backward(retain_graph=True)\n    loss = loss * 2\n    optimizer.zero"
            ),
            "",
        ),
    ],
)
def test_the_advice_says_why_it_is_left_to_people(text: str, why: str) -> None:
    answer = fixed(text)
    assert isinstance(answer, Advice), answer
    assert why in answer.text


def test_elements_of_dictionaries_and_of_counted_rows_are_no_masks() -> None:
    assert "torch.autocast" in text_of(fixed(EXPERTS.replace("out[mask] =", "y =") + FLAT))


def test_a_format_that_the_command_line_names_is_advice() -> None:
    text = NANOGPT.format(setting="dtype = 'float32'")
    request = replace(example_request("fp32-matmul", text, facts=FLOAT32), words=["--dtype=float32"])
    answer = FIXER.rewrite(request)
    assert isinstance(answer, Advice)
    assert "`--dtype=float32`" in answer.text
