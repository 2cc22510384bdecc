"""What is found about a file or a program is found once, and only in files that can hold it."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.settings.configs import entries
from diagnose.source.tree.definitions import Definitions
from diagnose.source.tree.memo import parse_all, per_program, per_source
from diagnose.source.tree.syntax import Source

NET = "class Net:\n    def forward(self, x):\n        return x\n"
ASKS = "net = Net()\n# forward\n"


def test_a_question_about_a_file_is_answered_once_for_each_of_its_arguments() -> None:
    asked: list[str] = []

    @per_source
    def calls(source: Source, name: str) -> int:
        asked.append(name)
        return len(source.calls_named(name))

    one, other = Source("f()\nf()\n"), Source("f()\n")
    assert [calls(one, "f"), calls(one, "f"), calls(one, "g"), calls(other, "f")] == [2, 2, 0, 1]
    assert asked == ["f", "g", "f"]


def test_a_question_about_a_program_is_answered_anew_where_a_file_changed() -> None:
    asked: list[int] = []

    @per_program
    def lines(texts: Mapping[str, str]) -> int:
        asked.append(len(texts))
        return sum(text.count("\n") for text in texts.values())

    assert lines({"a.py": "x\n"}) == lines({"a.py": "x\n"}) == 1
    assert lines({"a.py": "x\ny\n"}) == 2
    assert len(asked) == 2


def test_a_question_about_a_program_is_answered_once_for_each_of_many_arguments() -> None:
    asked: list[int] = []

    @per_program
    def plus(texts: Mapping[str, str], number: int) -> int:
        asked.append(number)
        return len(texts) + number

    numbers = range(40)  # more than there are states of programs that are kept
    assert [plus({"a.py": ""}, each) for each in [*numbers, *numbers]] == [each + 1 for each in [*numbers, *numbers]]
    assert asked == [*numbers]


def test_definitions_are_looked_up_in_files_that_have_them_and_no_other_is_parsed_whole() -> None:
    sources = parse_all({"net.py": NET + "# looked up\n", "train.py": ASKS + "# looked up\n"})
    definitions = Definitions(sources)
    assert [(path, type(each)) for path, each in definitions.named("forward")] == [("net.py", cst.FunctionDef)]
    assert "Net" in definitions
    assert "net" not in definitions
    assert "module" not in vars(sources["train.py"])


def test_a_word_is_held_whole_and_not_as_a_part_of_another() -> None:
    source = Source('parser.add_argument("--batch-size")\n')
    assert source.holds("batch")
    assert source.holds("batch-size")
    assert not source.holds("size-batch")
    assert not source.holds("argument")


def test_nodes_of_some_kinds_come_in_the_order_of_the_text() -> None:
    source = Source("a = f(1)\nb += 2\n")
    kinds = [type(node) for node in source.walk(None, cst.AugAssign, cst.Assign, cst.Call)]
    assert kinds == [cst.Assign, cst.Call, cst.AugAssign]


def test_the_statement_at_a_line_is_the_innermost() -> None:
    source = Source("if a:\n    b()\n")
    assert isinstance(source.statement_at(1), cst.If)
    assert isinstance(source.statement_at(2), cst.SimpleStatementLine)
    assert source.statement_at(3) is None


def test_code_that_makes_samples_is_followed_deeper_than_python_lets_functions_call() -> None:
    depth = 3000
    chain = "".join(f"def make_{at}():\n    return make_{at + 1}()\n\n\n" for at in range(depth))
    text = chain + f"def make_{depth}():\n    return Images()\n\n\nclass Images:\n    pass\n\n\ndata = make_0()\n"
    sources = parse_all({"train.py": text})
    code = SampleCode(sources)
    code.builds("train.py", sources["train.py"].calls_named("make_0")[0])
    assert [owner.name.value for owner in code.lasting] == ["Images"]


def test_a_config_file_is_read_once_for_all_options_that_are_looked_for_in_it() -> None:
    text = '{"loader": {"num_workers": 4}}'
    assert entries("train.json", text) is entries("train.json", text)
    assert [each.value for each in entries("train.json", text.replace("4", "2"))] == [2]
