"""A program's own options of the precision, which open its autocast."""

from __future__ import annotations

from dataclasses import replace

import pytest
from autocast_requests import FIXER, fixed

from diagnose.fixer import Advice, Edits, Facts, example_request
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine

OPTIONS = """\
import argparse
from functools import partial
import torch

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp-dtype", default="float16")
args = parser.parse_args()
"""
KEPT_FOR_LATER = """\
amp_dtype = torch.float16
if args.amp:
    if args.amp_dtype == "bfloat16":
        amp_dtype = torch.bfloat16
forward = None
scaler = None
if args.amp:
    forward = partial(torch.autocast, device_type="cuda", dtype=amp_dtype)
    if amp_dtype == torch.float16:
        scaler = torch.amp.GradScaler()
"""
SCALED = """\
scaler = torch.amp.GradScaler() if args.amp else None
for x, y in loader:
    with torch.autocast("cuda", enabled=scaler is not None):
        loss = model(x).sum()
    loss.backward()
"""


@pytest.mark.parametrize(
    ("body", "capability", "command"),
    [
        (KEPT_FOR_LATER, (9, 0), "train.py d --amp --amp-dtype bfloat16"),
        (KEPT_FOR_LATER, (7, 5), "train.py d --amp"),
        (SCALED, (9, 0), "train.py d --amp"),
        (SCALED.replace("torch.amp.GradScaler() if args.amp", "object() if args.amp"), (9, 0), None),
    ],
)
def test_the_programs_own_options_open_its_autocast(
    body: str, capability: tuple[int, int], command: str | None
) -> None:
    facts = Facts(autocast_dtype="none", device_capability=capability, device_name="a device")
    request = example_request("fp32-matmul", OPTIONS + body, facts=facts)
    answer = FIXER.rewrite(replace(request, words=CommandLine(("train.py", "d"), 1)))
    if command is None:
        assert not isinstance(answer, Edits)
    else:
        assert isinstance(answer, Edits)
        assert answer.files == {COMMAND_LINE: command.replace(" ", "\n") + "\n"}


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("torch.float16", "in float16 with"),
        ("torch.bfloat16 if args.amp_dtype == 'bfloat16' else torch.float16", "in bfloat16"),
        ("torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16", "in bfloat16"),
        ("torch.bfloat16 if device == 'cpu' else torch.float16", "in the format of 16 bits that it chooses"),
        ("torch.float16 if device == 'cuda' else torch.bfloat16", "in the format of 16 bits that it chooses"),
        ("torch.float16 if args.amp else torch.bfloat16", "in float16 with"),
        ("pick(device)", "in the format of 16 bits that it chooses"),
    ],
)
def test_the_summary_names_the_format_that_the_program_then_computes_in(dtype: str, words: str) -> None:
    text = OPTIONS + f"amp_dtype = {dtype}\n" + SCALED.replace('"cuda", ', '"cuda", amp_dtype, ')
    answer = fixed(text)
    assert isinstance(answer, Edits), answer
    assert words in answer.summary


@pytest.mark.parametrize(
    "dtype", ["torch.bfloat16 if device == 'cpu' else torch.float16", "torch.float16 if args.amp else torch.bfloat16"]
)
def test_a_format_that_may_be_float16_is_not_opened_without_a_scaler(dtype: str) -> None:
    text = OPTIONS + f"amp_dtype = {dtype}\n"
    for given in ("amp_dtype", f"dtype={dtype}"):
        line = f'with torch.autocast("cuda", {given}, enabled=args.amp):\n'
        assert isinstance(fixed(text + line + "    model(x).sum().backward()\n"), Advice)
