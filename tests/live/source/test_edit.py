"""Edits follow the style of the code around them and leave everything else as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watching import LIMIT_S

from diagnose.errors import InputError
from diagnose.program.source import decode_source, read_source
from diagnose.source.rewrite.replacement import call_in_place, in_place
from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import (
    Source,
    Splice,
    call_at,
    ensure_import,
    insert_after,
    insert_before,
    parse,
    splice,
    top_of_program,
)


def parsed(text: str) -> Source:
    source = parse(text)
    assert source is not None
    return source


def set_in(text: str, remove: tuple[str, ...] = (), **values: str) -> str:
    source = parsed(text)
    call = call_at(source, 1, {"F"})
    assert call is not None
    return splice(text, set_keywords(source, call, values, remove=remove))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("F()", "F(k=1)"),
        ("F(a)", "F(a, k=1)"),
        ("F(a,)", "F(a, k=1,)"),
        ("F(a, k=0)  # c", "F(a, k=1)  # c"),
        ("F(a, k=(0))", "F(a, k=1)"),
        ("F(a, k = 0, b=2)", "F(a, k = 1, b=2)"),
        ("F(a,\n  b)", "F(a,\n  b, k=1)"),
        ("F(\n    a,\n    b,\n)", "F(\n    a,\n    b,\n    k=1,\n)"),
        ("F(\n    a,\n    b\n)", "F(\n    a,\n    b,\n    k=1\n)"),
        ("F(\n    a,\n    b)", "F(\n    a,\n    b,\n    k=1)"),
        ("F(\n    a,  # one\n    b  # two\n)", "F(\n    a,  # one\n    b,  # two\n    k=1\n)"),
        ("F(\n    a,  # one\n    b,  # two\n)", "F(\n    a,  # one\n    b,  # two\n    k=1,\n)"),
        ("F(\r\n\ta,\r\n)\r\n", "F(\r\n\ta,\r\n\tk=1,\r\n)\r\n"),
        ("F(*a, **b)", "F(*a, **b, k=1)"),
        ("F((x for x in y))", "F((x for x in y), k=1)"),
        ("F(x for x in y)", "F((x for x in y), k=1)"),
        ('F(\'ü\', b\'\\x00\', """\n""")', 'F(\'ü\', b\'\\x00\', """\n""", k=1)'),
    ],
)
def test_a_keyword_is_set_in_the_style_of_the_call(before: str, after: str) -> None:
    assert set_in(before, k="1") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("F(a, r=1)", "F(a)"),
        ("F(r=1)", "F()"),
        ("F(r=1, b=2)", "F(b=2)"),
        ("F(a, r=1, b=2)", "F(a, b=2)"),
        ("F(\n    a,\n    r=1,  # why\n    b=2,\n)", "F(\n    a,\n    b=2,\n)"),
        ("F(\n    a,\n    r=1,\n)", "F(\n    a,\n)"),
        ("F(a)", "F(a)"),
    ],
)
def test_a_keyword_is_removed_with_its_comma(before: str, after: str) -> None:
    assert set_in(before, remove=("r",)) == after


WIDE = "a" * 87


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"F({WIDE}, b=1)", f"F({WIDE}, b=1, k=1)"),
        (f"F({WIDE}, b=12)", f"F(\n    {WIDE},\n    b=12,\n    k=1,\n)"),
        (f"x = [F({WIDE},b = 1,)]  # c", f"x = [F(\n    {WIDE},\n    b = 1,\n    k=1,\n)]  # c"),
        (
            f"if x:\n\tF({WIDE}, (b),  *c , **d)",
            f"if x:\n\tF(\n\t\t{WIDE},\n\t\t(b),\n\t\t*c ,\n\t\t**d,\n\t\tk=1,\n\t)",
        ),
        (f"F(x for x in {WIDE})", f"F(\n    (x for x in {WIDE}),\n    k=1,\n)"),
        (f"F( (x) for x in {WIDE} )", f"F(\n    ((x) for x in {WIDE}),\n    k=1,\n)"),
        (f"{WIDE}.{WIDE}.F()", f"{WIDE}.{WIDE}.F(\n    k=1,\n)"),
        (f"F({WIDE}, b=12)\r\n", f"F(\r\n    {WIDE},\r\n    b=12,\r\n    k=1,\r\n)\r\n"),
        # A row of several statements stays one: broken in its middle, nobody would read it.
        (f"F({WIDE}, b=12); F(2)", f"F({WIDE}, b=12, k=1); F(2)"),
        (f"F({WIDE}, k=1234567890123456789, b=12)", f"F({WIDE}, k=1, b=12)"),
        # A file whose own lines are longer sets the limit, up to 120.
        (f"F({WIDE}, b=12)\n# {'-' * 110}", f"F({WIDE}, b=12, k=1)\n# {'-' * 110}"),
        (f"F({WIDE}, b={'c' * 30})\n# {'-' * 150}", f"F(\n    {WIDE},\n    b={'c' * 30},\n    k=1,\n)\n# {'-' * 150}"),
        # Rows of several arguments get another row.
        (f"F({WIDE},\n  {WIDE}, b=12345678)", f"F({WIDE},\n  {WIDE}, b=12345678,\n  k=1)"),
        (f"F({WIDE},\n  {WIDE}, b=12345678,)", f"F({WIDE},\n  {WIDE}, b=12345678,\n  k=1,)"),
        (f"F({WIDE}, {{\n}}, b={WIDE}12345)", f"F({WIDE}, {{\n}}, b={WIDE}12345, k=1)"),
        # The braces of a string end with its line.
        (f"f'{{F({WIDE}, b=12)}}'", f"f'{{F({WIDE}, b=12, k=1)}}'"),
    ],
)
def test_a_line_that_would_grow_too_long_is_broken_as_formatters_do(before: str, after: str) -> None:
    source = parsed(before)
    call = next(call for call in source.every(cst.Call) if source.code(call.func).endswith("F"))
    found = splice(before, set_keywords(source, call, {"k": "1"}))
    assert found == after
    compile(found, "train.py", "exec", dont_inherit=True)


def test_keywords_changed_in_place_count_for_the_length_of_the_line() -> None:
    text = f"F({WIDE}, b=1)"
    assert set_in(text, b="'more'", k="1") == f"F(\n    {WIDE},\n    b='more',\n    k=1,\n)"


def test_what_formatters_wrote_they_leave_as_it_is() -> None:
    text = f"loader = F({WIDE}, shuffle=True)\n"
    broken = set_in(text, k="1", m="2")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-"],
        input=broken,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert done.stdout == broken


def test_a_new_keyword_takes_the_place_of_a_removed_one() -> None:
    assert set_in("F(a, r=1, b=2)", remove=("r",), k="3") == "F(a, k=3, b=2)"


LONG = "F(\n    a,\n    G(F(2)),\n)"
CALLS = f"x = G(F(1), 2)\ny = {LONG}\nF(1); F(2)\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (1, "F(1)"),
        (2, "F(\n    a,\n    G(F(2)),\n)"),
        (3, "F(\n    a,\n    G(F(2)),\n)"),
        (4, "F(2)"),
        (6, None),
        (9, None),
    ],
)
def test_a_call_is_found_by_any_of_its_lines(line: int, code: str | None) -> None:
    source = parsed(CALLS)
    call = call_at(source, line, {"F"})
    assert (source.code(call) if call else None) == code


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.data import DataLoader as DL\nDL(x)\n",
        "import torch.utils.data as d\nd.DataLoader(x)\n",
        "import torch\ntorch.utils.data.DataLoader(x)\n",
        "from torch.utils import data\ndata.DataLoader[int](x)\n",
    ],
)
def test_a_call_is_known_by_every_name(text: str) -> None:
    assert call_at(parsed(text), 2, {"DataLoader"}) is not None


@pytest.mark.parametrize(
    ("text", "name", "after"),
    [
        ("import torch\nx\n", "torch", "import torch\nx\n"),
        ("import torch as t\nx\n", "t", "import torch as t\nx\n"),
        ("import torch.nn as nn\nx\n", "torch", "import torch.nn as nn\nimport torch\nx\n"),
        ("import torch.nn\nx\n", "torch", "import torch.nn\nx\n"),
        ('"""Doc."""\nx\n', "torch", '"""Doc."""\nimport torch\nx\n'),
        ("from __future__ import annotations\nx\n", "torch", "from __future__ import annotations\nimport torch\nx\n"),
        ("#!/usr/bin/env python\nx\n", "torch", "#!/usr/bin/env python\nimport torch\nx\n"),
    ],
)
def test_an_import_is_added_where_it_is_missing(text: str, name: str, after: str) -> None:
    source = parsed(text)
    found, splices = ensure_import(source, "torch")
    assert (found, splice(text, splices)) == (name, after)


def test_the_program_begins_after_its_first_imports() -> None:
    source = parsed("import a\nimport os\nos.environ['X'] = '1'\nimport b\n\ndef f():\n    import c\n\nimport d\n")
    top = top_of_program(source)
    assert top is not None
    assert source.code(top) == "import b"


def test_statements_are_inserted_with_the_indentation_of_their_neighbour() -> None:
    text = "if a:\n\tb  # c\n\tif d: e"
    source = parsed(text)
    statement = next(line for line in source.every(cst.SimpleStatementLine) if source.code(line).startswith("b"))
    assert splice(text, [insert_before(source, statement, ["x", "y"])]) == "if a:\n\tx\n\ty\n\tb  # c\n\tif d: e"
    assert splice(text, [insert_after(source, statement, ["x"])]) == "if a:\n\tb  # c\n\tx\n\tif d: e"


def test_edits_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        splice("abcdef", [Splice(0, 3, "x"), Splice(2, 4, "y")])


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=3), st.text(max_size=3)), max_size=5))
def test_what_is_not_spliced_stays(parts: list[tuple[str, str, str]]) -> None:
    text = "".join(kept + old for kept, old, _ in parts)
    edits, at = [], 0
    for kept, old, new in parts:
        at += len(kept)
        edits.append(Splice(at, at + len(old), new))
        at += len(old)
    assert splice(text, edits) == "".join(kept + new for kept, _, new in parts)


@pytest.mark.parametrize(
    "data", [b"x = 1\r\n", b"\xef\xbb\xbfx = 1\n", b"# -*- coding: latin-1 -*-\n# \xe9\n", b"", b"a\rb\n"]
)
def test_text_and_bytes_are_the_same_there_and_back(data: bytes) -> None:
    source = decode_source(data)
    assert source.encode(source.text) == data


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"# coding: no-such-codec\n", b"a\x00b\n"])
def test_what_is_no_text_is_said(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.py").write_bytes(data)
    with pytest.raises(InputError):
        read_source(tmp_path / "x.py")


def test_a_character_that_the_encoding_lacks_is_said() -> None:
    with pytest.raises(InputError, match="iso-8859-1"):
        decode_source(b"# coding: latin-1\n").encode("\N{SNOWMAN}")


def replaced(text: str, code: str) -> str:
    """A text whose one `F(…)` gave its place to other code."""
    source = parsed(text)
    call = next(call for call in source.every(cst.Call) if source.code(call.func) == "F")
    return splice(text, in_place(source, call, code))


def called(text: str, *arguments: str) -> str:
    source = parsed(text)
    call = next(call for call in source.every(cst.Call) if source.code(call.func) == "F")
    return splice(text, call_in_place(source, call, "G", arguments))


def test_comments_of_an_expression_stay_above_what_takes_its_place() -> None:
    text = "def f():\n    y = 2 * F(\n        a,  # of the batch\n        # and of the rest\n        b,\n    )\n"
    after = "def f():\n    # of the batch\n    # and of the rest\n    y = 2 * g\n"
    assert replaced(text, "g") == after


def test_comments_that_the_new_code_has_stand_once() -> None:
    assert replaced("y = F(\n    a  # kept\n    + b\n)\n", "G(\n    a  # kept\n    + b\n)") == (
        "y = G(\n    a  # kept\n    + b\n)\n"
    )


@pytest.mark.parametrize(
    "before, after",
    [
        ("if x:\n    pass\nelif F(  # why\n    x\n):\n    pass\n", "if x:\n    pass\n# why\nelif g:\n    pass\n"),
        ("if x: y = F(  # why\n    x\n)\n", "# why\nif x: y = g\n"),
        ("x = 1; y = F(  # why\n    x\n)\n", "# why\nx = 1; y = g\n"),
        ("y = [\n    1,\n    F(  # why\n        x\n    ),\n]\n", "# why\ny = [\n    1,\n    g,\n]\n"),
    ],
)
def test_comments_go_where_a_line_of_their_own_may_stand(before: str, after: str) -> None:
    compile(after, "after", "exec")
    assert replaced(before, "g") == after


def test_comments_stay_beside_the_arguments_that_they_speak_of() -> None:
    text = "y = F(\n    logits.flatten(0, 1),  # (B*T, V)\n    targets,  # (B, T)\n).mean()\n"
    after = "# (B, T)\ny = G(\n    logits.flatten(0, 1),  # (B*T, V)\n    targets.flatten(),\n).mean()\n"
    assert called(text, "logits.flatten(0, 1)", "targets.flatten()") == after
