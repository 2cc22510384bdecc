"""What imports alone bind is known without the scopes of a file, and is what LibCST finds in these."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import QualifiedNameSource

import diagnose.source
from diagnose.source.tree.syntax import Source, parse

ODD = """
import os.path, torch
import numpy as np
import torch.nn as nn, torch.optim
from torch.nn import functional as F, Linear
from . import blocks
from .blocks import Block as Own
from math import *
try:
    import fast as quick
except ImportError:
    import slow as quick


@torch.no_grad()
def late(np, *, size: int = 3, kind=str):
    import zlib
    from torch.optim import SGD
    str = kind
    return zlib.crc32(np.b), SGD, float(size), str(size), list(range(size))


def later():
    return zlib.crc32(b"x"), SGD, np.array([1, 2]), quick.run(F.relu), nn.Linear(2, int(3.5))


class Net(nn.Module):
    Linear = None

    def forward(self, x, nn=None):
        (os, F) = x
        a, b = np.pi, [torch.pi]
        for torch in x:
            print(torch.nn, f"{np.e}", sqrt(2), Own.make(blocks=blocks.all), self.np, x.torch.nn)
        return Linear(x)[np.newaxis], {np.inf: np.nan}, np.zeros(3).sum() if np.any(x) else -np.inf


np.random.seed(0)
len = max
print(len(x), isinstance(x, (int, float)), torch.optim.SGD, nn.functional.relu, os.path.join, np.a < np.b < np.c)
del quick
"""
FILES = sorted(Path(diagnose.source.__path__[0]).rglob("[a-z]*.py"))[::12]


def checked(source: Source) -> int:
    """How many names of a file are the same as in LibCST's scopes; all of them, or it fails."""
    count = 0
    for node in source.walk(None, cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Decorator, cst.FunctionDef):
        scope = source._scopes.get(node)
        found = tuple(scope.get_qualified_names_for(node)) if scope else ()
        names = frozenset(each.name for each in found)
        foreign = any(each.source is not QualifiedNameSource.IMPORT for each in found)
        assert source.names(node) == names, source.code(node)
        assert source.imported(node) == (frozenset() if foreign else names), source.code(node)
        assert source.is_called(node, "torch.", "math.") == any(each.startswith(("torch.", "math.")) for each in names)
        for each in found:
            local = each.source is QualifiedNameSource.LOCAL
            assert local or source.is_called(node, each.name), source.code(node)
        count += 1
    return count


def test_names_are_those_of_the_scopes() -> None:
    source = parse(ODD)
    assert source is not None
    assert checked(source) > 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_of_written_code_are_those_of_its_scopes(path: Path) -> None:
    source = parse(path.read_text())
    assert source is not None
    assert checked(source) > 0


def test_a_name_that_an_import_alone_binds_needs_no_scopes() -> None:
    source = parse("import torch\nfrom torch import nn\n\n\ndef build(width):\n    return nn.Linear(width, int(2.5))\n")
    assert source is not None
    (made,) = source.calls_of("torch.nn.Linear")
    assert source.names(made.func) == {"torch.nn.Linear"}
    assert not source.is_called(made.func, "torch.optim.")
    assert "_scopes" not in vars(source)


def test_a_name_that_is_also_bound_otherwise_is_left_to_the_scopes() -> None:
    source = parse("from torch import nn\n\n\ndef build(nn, width):\n    return nn.Linear(width, 2)\n")
    assert source is not None
    assert not list(source.calls_of("torch.nn.Linear"))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("import torch\nfrom .own import checkpoint\nx = checkpoint(f, x)\n", False),
        ("import torch\nx = torch.utils.checkpoint.checkpoint(f, x)\n", True),
        ("from torch.utils.checkpoint import checkpoint as again\nx = again(f, x)\n", True),
        ("from torch.utils import checkpoint\nx = checkpoint.checkpoint(f, x)\n", True),
        ("import torch.utils.checkpoint as cp\nx = cp.checkpoint(f, x)\n", True),
    ],
)
def test_a_file_whose_imports_cannot_name_a_function_is_not_parsed_for_its_calls(text: str, parsed: bool) -> None:
    source = Source(text)
    assert bool(list(source.calls_of("torch.utils.checkpoint.checkpoint"))) is parsed
    assert ("module" in vars(source)) is parsed


@pytest.mark.parametrize(
    ("top", "names"),
    [
        ("from blocks import *", {"torch.optim.SGD", "torch.nn.Linear", "numpy.random.rand", "random.random"}),
        ("import blocks", set()),
        ("from blocks import *\nfrom fakes import torch, nn, np, random", {
            "fakes.torch.optim.SGD", "fakes.nn.Linear", "fakes.np.random.rand", "fakes.random.random"}),
    ],
)  # fmt: skip
def test_modules_that_a_star_import_brings_go_by_their_usual_names(top: str, names: set[str]) -> None:
    source = Source(f"{top}\ntorch.optim.SGD(p)\nnn.Linear(2, 3)\nnp.random.rand(3)\nrandom.random()\n")
    assert {name for call in source.every(cst.Call) for name in source.names(call.func)} == names


def test_a_name_that_a_file_binds_itself_is_no_module_of_a_star_import() -> None:
    source = Source("from blocks import *\n\n\ndef step(torch):\n    return torch.optim.SGD(torch)\n")
    assert not any(source.is_called(call.func, "torch.") for call in source.every(cst.Call))
