"""Where a program asks a compiled model for what the wrapper changes, by whatever name the model goes there."""

from __future__ import annotations

import pytest

from diagnose.source.models.compilation import compilations
from diagnose.source.models.wrapped_uses import use_of_wrapper
from diagnose.source.tree.syntax import parse

MAIN = "import torch\nfrom tools import keep, Keeper\nmodel = Net()\nmodel = torch.compile(model)\n"


@pytest.mark.parametrize(
    ("main", "tools", "use"),
    [
        ("torch.save(model.state_dict(), 'x')\n", "", "train.py:5"),
        ("raw = model.module if many else model\nfor n, p in raw.named_parameters():\n    n\n", "", "train.py:6"),
        ("keep(model)\n", "def keep(net):\n    return deepcopy(net)\n", "tools.py:2"),
        ("keep(1, net=model)\n", "def keep(step, net):\n    return net.module.state_dict()\n", "tools.py:2"),
        ("keep(1, *model)\n", "async def keep(step, net):\n    print(net)\n", "tools.py:2"),
        ("Keeper(model)\n", "class Keeper:\n    def __init__(self, net):\n        net.children()\n", "tools.py:3"),
        ("Keeper(model).save()\n", "class Keeper:\n    def __init__(self, net):\n        self.kept = net\n\n"
         "    def save(self):\n        return self.kept.__class__\n", "tools.py:6"),
        ("print(f'a'\n      f'{step} {model}')\n", "", "train.py:6"),
        ("print(\n    1)\nlog(f'{model}')\n", "", "train.py:7"),
        ("Keeper[int](model)\n", "def Keeper(a):\n    return type(a)\n", "tools.py:2"),
        ("model(x).mean().backward()\n", "def keep(net):\n    return net(1)\n", None),
        ("print(loss)\n", "def keep(net):\n    return net.state_dict()\n", None),
        ("other.state_dict()\n", "", None),
    ],
)  # fmt: skip
def test_the_first_use_is_named_in_the_order_of_the_text(main: str, tools: str, use: str | None) -> None:
    sources = {"train.py": MAIN + main, "tools.py": tools}
    (compiled,) = compilations(sources)
    assert use_of_wrapper(sources, compiled) == use


def test_files_are_not_parsed_whole_for_it() -> None:
    tools = "def keep(net):\n    for each in net:\n        each(1)\n    return net.state_dict()\n"
    sources = {"train.py": MAIN + "keep(model)\n", "tools.py": tools}
    (compiled,) = compilations(sources)
    assert use_of_wrapper(sources, compiled) == "tools.py:4"
    source = parse(tools)
    assert source is not None
    assert "module" not in vars(source)
