"""The Markdown report."""

from __future__ import annotations

from dataclasses import replace

import journals
import pytest
import tinygpt

from diagnose.report.export import markdown
from diagnose.report.export.markdown_text import code, fence_around, inline
from diagnose.session import fold


def test_findings_are_headings_in_order_with_their_lines() -> None:
    said = markdown.render(fold(journals.fixed()))
    assert said.startswith("# train.py --data shakespeare.txt\n\nNVIDIA H200 · 1 rank · 62.0 ms per step")
    assert said.index("### 1. ▲ input-bound (high)") < said.index("### 2. ▲ host-sync (high)")
    assert "- Where: `train.py:17` `total += parameter.grad.norm().item() ** 2`" in said


def test_verdicts_are_a_table_and_the_diff_a_block() -> None:
    said = markdown.render(fold(journals.fixed()))
    assert "| loader-workers | 29.4 ms | 27.7 ms | +46.1 % [+45.2, +47.0] | ✓ kept |" in said
    assert "```diff\n--- a/train.py\n+++ b/train.py\n" in said


def test_what_was_changed_comes_before_what_was_found() -> None:
    said = markdown.render(fold(journals.fixed()))
    assert said.index("## Fixes tried") < said.index("```diff") < said.index("## Fix this first")


def test_text_of_a_trace_cannot_break_the_document() -> None:
    diagnosis = tinygpt.gpu_diagnosis()
    hostile = replace(diagnosis.findings[0], summary="a <script>\n# b | c", evidence=(), where=())
    said = markdown.render(replace(diagnosis, findings=(hostile,)))
    assert "A &lt;script> # b | c." in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a <img src=x> b", "a &lt;img src=x> b"),
        ("<!-- hidden", "&lt;!-- hidden"),
        ("![x](http://a.b)", "![x\\](http:\u200b//a.b)"),
        ("thanks @somebody, see #12", "thanks @\u200bsomebody, see #\u200b12"),
        ("run `x <b> @y` now", "run `x <b> @y` now"),
        ("one ` alone", "one \\` alone"),
        ("&lt;b&gt; **bold** __init__ train_step", "&amp;lt;b&amp;gt; \\*\\*bold\\*\\* \\_\\_init\\_\\_ train_step"),
        ("several\n\n# lines", "several # lines"),
        ("+46.1 % [+45.2, +47.0]", "+46.1 % [+45.2, +47.0]"),
    ],
)
def test_text_of_others_is_no_markup(words: str, said: str) -> None:
    assert inline(words) == said


def test_code_ends_where_its_span_does_whatever_it_holds() -> None:
    assert code("a.py:1") == "`a.py:1`"
    assert code("a`<b>`.py") == "`` a`<b>`.py ``".replace(" ", "")
    assert code("`") == "`` ` ``"
    assert fence_around("+``` \n+````") == "`````"
