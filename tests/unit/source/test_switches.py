"""Which settings a program is told so that a line of it is reached, by what decides about the line."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst
import pytest

from diagnose.source.settings.command_line import CommandLine
from diagnose.source.settings.switches import Switches
from diagnose.source.tree.edits import call_name, parse, splice

HEAD = """\
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?")
parser.add_argument("--amp", action="store_true", default=False)
parser.add_argument("--no-amp", action="store_true", default=False)
parser.add_argument("--half", nargs="?", const="yes", default=None)
parser.add_argument("--mode", default="plain")
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
"""
KIND = re.compile("autocast|Scaler")


def told(body: str, *words: str, others: Mapping[str, str] | None = None) -> str | None:
    """The options that reach the first `autocast(…)`, or make its `enabled` true; None where none do."""
    text = HEAD + body
    source = parse(text)
    assert source is not None
    command = CommandLine(("train.py", "d", *words), 1)
    switches = Switches({"train.py": text, **(others or {})}, KIND, words=command)
    call = next(call for call in source.every(cst.Call) if call_name(call) == "autocast")
    turns = switches.reach("train.py", source, call)
    for arg in call.args:
        if arg.keyword is not None and turns is not None:
            more = switches.make(arg.value, True, "train.py", source)
            turns = None if more is None else (*turns, *more)
    if turns is None:
        return None
    after = splice(command.text, [turn.setting.to(turn.value) for turn in dict.fromkeys(turns)])
    return " ".join(after.split()[2:])


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("autocast()\n", ""),
        ("if args.amp:\n    autocast()\n", "--amp"),
        ("if not args.amp:\n    pass\nelse:\n    autocast()\n", "--amp"),
        ("cast = autocast() if args.amp else None\n", "--amp"),
        ("autocast(enabled=args.amp)\n", "--amp"),
        ("use = args.amp\nautocast(enabled=use)\n", "--amp"),
        ("use = False\nif args.amp:\n    use = True  # autocast\nautocast(enabled=use)\n", "--amp"),
        ("scaler = Scaler() if args.amp else None\nautocast(enabled=scaler is not None)\n", "--amp"),
        ("scaler = None\nif args.amp:\n    scaler = Scaler()\nautocast(enabled=scaler is not None)\n", "--amp"),
        (
            "def epoch(model, scaler=None):\n    autocast(enabled=scaler is not None)\n\n"
            "scaler = Scaler() if args.amp else None\nepoch(model, scaler)\n",
            "--amp",
        ),
        ("if args.mode == 'mixed':\n    autocast()\n", "--mode mixed"),
        ("if args.half:\n    autocast()\n", "--half"),
        ("if args.amp and device.type == 'cuda':\n    autocast()\n", "--amp"),
        ("if args.amp:\n    print('mixed')\nif args.amp:\n    autocast()\n", "--amp"),
        ("if not args.no_amp:\n    autocast()\n", ""),
    ],
)
def test_a_line_is_reached_by_what_decides_about_it(body: str, options: str) -> None:
    assert told(body) == options


@pytest.mark.parametrize(
    "body",
    [
        "if args.distributed:\n    init_process_group()\nif args.distributed:\n    autocast()\n",
        "if args.amp:\n    epochs = 3\nif args.amp:\n    autocast()\n",
        "if False:\n    autocast()\n",
    ],
)
def test_what_decides_about_more_is_no_switch(body: str) -> None:
    assert told(body) is None


def test_what_is_given_is_turned_where_it_stands() -> None:
    assert told("if args.mode == 'mixed':\n    autocast()\n", "--mode", "plain", "--amp") == "--mode mixed --amp"
    assert told("if not args.no_amp:\n    autocast()\n", "--no-amp", "--amp") == "--amp"
    assert told("if args.amp:\n    autocast()\n", "--amp") == "--amp"


def test_a_part_of_a_configuration_may_be_handed_on_by_any_name() -> None:
    body = "autocast(enabled=self.config.mixed)\n"
    assert told(body, "trainer.mixed=False", "data.path=x") == "trainer.mixed=True data.path=x"
    assert told(body, "trainer.mixed=False", "model.mixed=False") == "trainer.mixed=False model.mixed=False"
