"""Questions about names are answered without the scopes of a file, and where nothing has the name without its tree."""

from __future__ import annotations

import re

import pytest

from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.ranks import names_ranks
from diagnose.source.dataflow.reachable_code import names_handed_on
from diagnose.source.patterns.attention import WrittenAttention, written_attentions
from diagnose.source.samples.given_attributes import assigned_attributes
from diagnose.source.settings.defaults import defaults_of, option_words
from diagnose.source.training.model_calls import is_model
from diagnose.source.tree.attributes import set_from_outside
from diagnose.source.tree.definitions import Definitions
from diagnose.source.tree.syntax import Source, parse
from diagnose.source.tree.text_lines import any_matches

ATTENTION = """
import torch
{imports}

def attend(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
    return {product}
"""


def source_of(text: str) -> Source:
    found = parse(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("imports", "product"),
    [
        ("", "weights @ v"),
        ("", "torch.matmul(weights, v)"),
        ("", "weights.matmul(v)"),
        ("from torch import bmm as product", "product(weights, v)"),
        ("from torch import einsum as e", "e('bhqk,bhkd->bhqd', weights, v)"),
    ],
)
def test_attention_is_found_by_any_name_of_its_product(imports: str, product: str) -> None:
    source = source_of(ATTENTION.format(imports=imports, product=product))
    assert [type(each) for each in written_attentions(source)] == [WrittenAttention]


@pytest.mark.parametrize(
    "text",
    [
        "def score(x, w):\n    return x @ w  # before a softmax\n",
        "import torch\n\ndef weights(x):\n    return torch.softmax(x, dim=-1)\n",
    ],
    ids=["no softmax", "no product"],
)
def test_a_file_without_both_is_not_parsed_for_attention(text: str) -> None:
    source = source_of(text)
    assert list(written_attentions(source)) == []
    assert "module" not in vars(source)


def test_writes_are_found_without_scopes() -> None:
    source = source_of(
        "import numpy as np\nfrom cv2 import line as draw\n\n"
        "def change(x, y, z, image):\n"
        "    compute(x)\n    np.copyto(y, x)\n    z[0] = x\n    draw(image, 1, 2)\n"
    )
    assert [name for name in ("x", "y", "z", "image") if is_written(source, name)] == ["y", "z", "image"]
    assert "_scopes" not in vars(source)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("own.train()", True),
        ("own.module.train()", True),
        ("list(own.parameters())", True),
        ("its.own.train()", False),
        ("owner.train()", False),
        ("own.inner.train()", False),
        ("own.training()", False),
        ("own.train", False),
    ],
)
def test_the_text_tells_a_module_by_what_it_asks_of_it(text: str, is_one: bool) -> None:
    assert is_model(source_of(text), "own") is is_one


def test_options_and_set_defaults_come_in_the_order_of_the_text() -> None:
    source = source_of(
        "parser.add_argument('--rate', '-r', default=1)\n"
        "parser.set_defaults(rate=2, other=5)\n"
        "parser.add_argument('--learning', dest='rate', default=3)\n"
        "parser.add_argument('--other', default=4)\n\n"
        "class Settings:\n    rate: int = 6\n"
    )
    assert [source.code(each.value) for each in defaults_of(source, "rate")] == ["1", "2", "3", "6"]
    assert option_words(source, "rate", ["-r", "7"]) == "-r"


def test_a_file_without_the_name_is_not_parsed_for_defaults() -> None:
    source = source_of("other = 3  # rate\n")
    assert list(defaults_of(source, "rate")) == []
    assert "module" not in vars(source)


def test_what_attributes_of_others_are_given() -> None:
    source = source_of(
        "block.scale = 1\nself.scale = 2\nblock.scale += 3\na, block.scale = 4, 5\nsetattr(block, 'scale', 6)\n"
        "block.other = 7\n"
    )
    assert [source.code(each) for each in set_from_outside(source, "scale")] == ["1", "3", "5", "6"]


def test_attributes_that_assignments_set() -> None:
    source = source_of("self.own = data.given = 1\ncls.shared = 2\ndata.more += 3\n")
    assert assigned_attributes(source, False) == {"given"}
    assert assigned_attributes(source, True) == {"own", "given", "shared"}


def test_names_that_are_handed_on() -> None:
    source = source_of("class A(Base, metaclass=Meta):\n    pass\n\nf(a, *b, key=c, **d)\ng(e.h, [i])\n")
    assert names_handed_on(source) - {""} == {"Base", "metaclass", "Meta", "a", "b", "key", "c", "d"}


def test_names_of_ranks_are_words() -> None:
    assert names_ranks(source_of("if LOCAL_RANK == 0:\n    pass\n"))
    assert names_ranks(source_of("if is_main_process():\n    pass\n"))
    assert not names_ranks(source_of("ranking = 3\n"))


def test_definitions_tell_methods_apart_without_a_tree() -> None:
    source = source_of("class A:\n    def method(self): ...\n\ndef free(): ...\n")
    defined = Definitions({"a.py": source})
    assert [name in defined for name in ("A", "method", "free", "other")] == [True, True, True, False]
    assert [defined.has_free(name) for name in ("A", "method", "free", "other")] == [True, False, True, False]
    assert "module" not in vars(source)


def test_a_pattern_is_looked_for_in_all_texts() -> None:
    pattern = re.compile(r"\bsecond\b")
    assert any_matches(pattern, ["first", "the second"])
    assert not any_matches(pattern, ["first", "seconds"])
    assert not any_matches(pattern, [])
