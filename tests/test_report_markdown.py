"""The Markdown report."""

from __future__ import annotations

from dataclasses import replace

import journals
import tinygpt

from diagnose.report import markdown
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


def test_text_of_a_trace_cannot_break_the_document() -> None:
    diagnosis = tinygpt.gpu_diagnosis()
    hostile = replace(diagnosis.findings[0], summary="a <script>\n# b | c", evidence=(), where=())
    said = markdown.render(replace(diagnosis, findings=(hostile,)))
    assert "A &lt;script> # b | c." in said
