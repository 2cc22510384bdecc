"""Where a value is set: through names, parameters, options, fields, dictionaries, config files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst
import pytest

from diagnose.model import Scalar
from diagnose.source.settings.configs import entries
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.values import setting_of
from diagnose.source.tree.edits import call_name, parse, splice


def found(
    text: str,
    recorded: Scalar = 0,
    *,
    keyword: str = "num_workers",
    others: Mapping[str, str] | None = None,
    configs: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
) -> Setting | None:
    """What sets the keyword of the one `DataLoader(…)` of train.py."""
    source = parse(text)
    assert source is not None
    call = next(call for call in source.every(cst.Call) if call_name(call) == "DataLoader")
    value = next(arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == keyword)
    sources = {"/p/train.py": text, **(others or {})}
    return setting_of(value, "/p/train.py", source, sources, recorded, configs=configs, words=words)


def edited(text: str, to: Scalar = 4, recorded: Scalar = 0, **known: object) -> str | None:
    """The edited file: train.py, or the one that holds the setting."""
    setting = found(text, recorded, **known)  # type: ignore[arg-type]
    if setting is None:
        return None
    others: dict[str, str] = {}
    for more in (known.get("others"), known.get("configs")):
        others |= more if isinstance(more, dict) else {}
    return splice({"/p/train.py": text, **others}[setting.path], [setting.to(to)])


LOADER = "loader = DataLoader(data, num_workers={})\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LOADER.format("0"), LOADER.format("4")),
        ("WORKERS = 0\n" + LOADER.format("WORKERS"), "WORKERS = 4\n" + LOADER.format("WORKERS")),
        (
            "def main():\n    workers, size = 0, 8\n    loader = DataLoader(data, size, num_workers=workers)\n",
            "def main():\n    workers, size = 4, 8\n    loader = DataLoader(data, size, num_workers=workers)\n",
        ),
        (
            "def make(data, workers):\n    return DataLoader(data, num_workers=workers)\n\nmake(data, 0)\n",
            "def make(data, workers):\n    return DataLoader(data, num_workers=workers)\n\nmake(data, 4)\n",
        ),
        (
            "def make(data, workers=0):\n    return DataLoader(data, num_workers=workers)\n\nmake(data)\n",
            "def make(data, workers=4):\n    return DataLoader(data, num_workers=workers)\n\nmake(data)\n",
        ),
        (
            "class T:\n    def __init__(self, workers=0):\n        self.workers = workers\n\n"
            "    def run(self):\n        DataLoader(data, num_workers=self.workers)\n\nT()\n",
            "class T:\n    def __init__(self, workers=4):\n        self.workers = workers\n\n"
            "    def run(self):\n        DataLoader(data, num_workers=self.workers)\n\nT()\n",
        ),
        (
            'parser.add_argument("-j", "--num-workers", default=0)\n' + LOADER.format("args.num_workers"),
            'parser.add_argument("-j", "--num-workers", default=4)\n' + LOADER.format("args.num_workers"),
        ),
        (
            'parser.add_argument("--num-workers", default=0)\nopt = vars(args)\n' + LOADER.format('opt["num_workers"]'),
            'parser.add_argument("--num-workers", default=4)\nopt = vars(args)\n' + LOADER.format('opt["num_workers"]'),
        ),
        (
            "@dataclass\nclass C:\n    workers: int = field(default=0)\n" + LOADER.format("int(cfg.data.workers)"),
            "@dataclass\nclass C:\n    workers: int = field(default=4)\n" + LOADER.format("int(cfg.data.workers)"),
        ),
        (
            "@dataclass\nclass C:\n    workers: int = 2\n\ncfg = C(workers=0)\n" + LOADER.format("cfg.workers"),
            "@dataclass\nclass C:\n    workers: int = 2\n\ncfg = C(workers=4)\n" + LOADER.format("cfg.workers"),
        ),
        (
            "class C:\n    WORKERS = 0\n" + LOADER.format("C.WORKERS"),
            "class C:\n    WORKERS = 4\n" + LOADER.format("C.WORKERS"),
        ),
        (
            "cfg = {'num_workers': 0}\n" + LOADER.format("cfg['num_workers']"),
            "cfg = {'num_workers': 4}\n" + LOADER.format("cfg['num_workers']"),
        ),
        (
            "cfg = dict(data=dict(num_workers=0))\n" + LOADER.format("cfg['data']['num_workers']"),
            "cfg = dict(data=dict(num_workers=4))\n" + LOADER.format("cfg['data']['num_workers']"),
        ),
        (LOADER.format('cfg.get("num_workers", 0)'), LOADER.format('cfg.get("num_workers", 4)')),
        (LOADER.format("4 if big else 0"), LOADER.format("4 if big else 8")),
        (
            "@click.option('--workers', default=0)\ndef main(workers):\n    DataLoader(data, num_workers=workers)\n",
            "@click.option('--workers', default=4)\ndef main(workers):\n    DataLoader(data, num_workers=workers)\n",
        ),
    ],
)
def test_the_literal_is_found_through_the_python_that_leads_to_it(before: str, after: str) -> None:
    assert edited(before, 8 if "big" in before else 4) == after


@pytest.mark.parametrize(
    "text",
    [
        "WORKERS = 0\nWORKERS = 1\n" + LOADER.format("WORKERS"),
        "WORKERS = 0\nbatch = 8 // max(1, WORKERS)\n" + LOADER.format("WORKERS"),
        "for w in (0, 1):\n    DataLoader(data, num_workers=w)\n",
        "def make(data, w):\n    return DataLoader(data, num_workers=w)\n\nmake(a, 0)\nmake(b, 0)\n",
        "def make(data, w):\n    return DataLoader(data, num_workers=w)\n\nmake(*everything)\n",
        LOADER.format("os.cpu_count()"),
        LOADER.format('int(os.environ.get("WORKERS", 0))'),
        "a = {'num_workers': 0}\nb = {'num_workers': 0}\n" + LOADER.format("a['num_workers']"),
        'parser.add_argument("--num-workers", default=2)\n' + LOADER.format("args.num_workers"),
        "cfg.workers = 0\ncfg.workers = 0\n" + LOADER.format("cfg.workers"),
    ],
)
def test_there_is_no_setting_where_an_edit_could_reach_too_far_or_not_far_enough(text: str) -> None:
    assert found(text) is None


def test_a_switch_of_the_command_line_gets_one_for_off() -> None:
    text = (
        'import argparse\np.add_argument("--pin-memory", action="store_true", help="h")\n'
        "DataLoader(data, pin_memory=args.pin_memory)\n"
    )
    after = text.replace('"store_true"', "argparse.BooleanOptionalAction, default=True")
    assert edited(text, True, False, keyword="pin_memory") == after


@pytest.mark.parametrize(
    ("beginning", "name"),
    [
        ("import argparse as ap\n", "ap"),
        ("import os, argparse\n", "argparse"),
        ("import argparse as ap\ndef options(p):\n    import argparse as parsing\n    ", "parsing"),
        ("def other():\n    import argparse\n\n\n", None),
        ("if TYPE_CHECKING:\n    import argparse\n", None),
        ("from parsers import p  # uses import argparse\n", None),
    ],
)
def test_a_switch_for_off_is_written_by_the_name_that_argparse_has_there(beginning: str, name: str | None) -> None:
    text = 'p.add_argument("--pin-memory", action="store_true")\nDataLoader(data, pin_memory=args.pin_memory)\n'
    given = beginning + text
    if name is None:
        assert found(given, False, keyword="pin_memory") is None
    else:
        after = given.replace('"store_true"', f"{name}.BooleanOptionalAction, default=True")
        assert edited(given, True, False, keyword="pin_memory") == after


@pytest.mark.parametrize(
    ("option", "after"),
    [
        ('action="store_true", default=False', "action=argparse.BooleanOptionalAction, default=True"),
        (
            'action="store_true", default=False, help="h"',
            'action=argparse.BooleanOptionalAction, default=True, help="h"',
        ),
        ('default=False, action="store_true"', None),
        ('action="store_true", help="h", default=False', None),
        ('action="store_true"); p.add_argument("--no-pin-memory"', None),
    ],
)
def test_a_switch_with_a_default_has_a_word_for_the_old_value(option: str, after: str | None) -> None:
    text = 'import argparse\np.add_argument("--pin-memory", {})\nDataLoader(data, pin_memory=args.pin_memory)\n'
    given = text.format(option)
    if after is None:
        assert found(given, False, keyword="pin_memory") is None
    else:
        assert edited(given, True, False, keyword="pin_memory") == text.format(after)


def test_booleans_and_strings_are_values_too() -> None:
    assert edited("PIN = False\nDataLoader(d, pin_memory=PIN)\n", True, False, keyword="pin_memory") == (
        "PIN = True\nDataLoader(d, pin_memory=PIN)\n"
    )
    assert edited("M = 'fork'\nDataLoader(d, context=M)\n", "spawn", "fork", keyword="context") == (
        "M = 'spawn'\nDataLoader(d, context=M)\n"
    )


def test_a_false_default_is_not_the_number_zero() -> None:
    text = 'p.add_argument("--num-workers", default=False)\n' + LOADER.format("args.num_workers")
    assert found(text) is None


@pytest.mark.parametrize("statement", ["from config import WORKERS", "from config import *"])
def test_a_constant_of_another_module_is_edited_there(statement: str) -> None:
    text = f"{statement}\n" + LOADER.format("WORKERS")
    assert edited(text, others={"/p/config.py": "WORKERS = 0  # slow\n"}) == "WORKERS = 4  # slow\n"
    assert edited(text, others={"/p/config.py": "WORKERS = 0\n", "/p/o.py": "x = 8 * WORKERS\n"}) is None


def test_an_attribute_of_a_module_is_edited_there() -> None:
    text = "import conf.data as c\n" + LOADER.format("c.WORKERS")
    assert edited(text, others={"/p/conf/data.py": "WORKERS = 0\n"}) == "WORKERS = 4\n"


def test_what_the_command_line_gives_wins() -> None:
    text = 'p.add_argument("-j", "--num-workers", default=0)\n' + LOADER.format("args.num_workers")
    assert found(text, words=["train.py"]) is not None
    for words in (["train.py", "-j", "0"], ["train.py", "--num-workers=0"]):
        assert found(text, words=words) is None


EXECUTES = "num_workers = 0\nexec(open('configurator.py').read())\n" + LOADER.format("num_workers")


def test_globals_under_an_executed_config_are_set_where_the_last_file_sets_them() -> None:
    config = {"/p/config/small.py": "num_workers = 1  # here\n"}
    words = ["train.py", "config/small.py"]
    assert edited(EXECUTES) == EXECUTES.replace("= 0", "= 4")
    assert edited(EXECUTES, recorded=1, others=config, words=words) == "num_workers = 4  # here\n"
    assert edited(EXECUTES, recorded=1, others=config, words=[*words, "--num_workers=1"]) is None


YAML = (
    "# all\ndata:\n  num_workers: 0   # few\n  pin: no\n  name: 'x # y'\n  sizes: [1, 2]\nlist:\n  - num_workers: 3\n"
)


def test_yaml_keeps_its_comments() -> None:
    text = LOADER.format('cfg["data"]["num_workers"]')
    assert edited(text, configs={"/p/c.yaml": YAML}) == YAML.replace("workers: 0", "workers: 4")
    assert edited(LOADER.format("cfg.data.num_workers"), configs={"/p/c.yaml": YAML}) is not None
    assert edited(LOADER.format("cfg.data.num_workers"), recorded=2, configs={"/p/c.yaml": YAML}) is None


def test_every_form_of_config_file_is_read_and_written() -> None:
    wanted = [(("data", "workers"), 0), (("data", "pin"), False), (("name",), "x")]
    files = {
        "a.yaml": 'data:\n    workers: 0\n    pin: false # c\nname: "x"\n',
        "a.json": '{"data": {"workers": 0, "pin": false, "l": [{"workers": 1}]},\n "name": "x"}',
        "a.toml": 'name = "x"\n[data]\nworkers = 0 # c\npin = false\n[[more]]\nn = 1\n',
    }
    for path, text in files.items():
        read = {entry.keys: entry.value for entry in entries(path, text)}
        assert {keys: read[keys] for keys, _ in wanted} == dict(wanted)
        source = "DataLoader(d, pin_memory=cfg.pin)\n"
        after = edited(source, True, False, keyword="pin_memory", configs={path: text})
        assert after == text.replace("false", "true")


def test_what_only_adjusts_a_value_leaves_its_option_to_decide() -> None:
    text = (
        'parser.add_argument("--workers", default=4)\nargs = parser.parse_args()\n'
        "if args.distributed:\n    args.workers = (args.workers + gpus - 1) // gpus\n" + LOADER.format("args.workers")
    )
    assert "default=8" in (edited(text, 8, recorded=4) or "")
    assert found(text, recorded=2) is None
