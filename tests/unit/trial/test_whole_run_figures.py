"""Printed text compared: which figures may differ between two runs, and which may not."""

from __future__ import annotations

import pytest

from diagnose.trial.whole_run.figures import Noise, differences, read_text

SAME = {
    "a time with its unit": ("epoch 1 loss 0.5 3.2s", "epoch 1 loss 0.5 1.7s"),
    "a rate": ("step 3 812.4 tok/s", "step 3 1203 tok/s"),
    "iterations per second": ("12.5 it/s", "31 it/s"),
    "a figure after the word time": ('{"loss": 0.5, "epoch_time": 3.21}', '{"loss": 0.5, "epoch_time": 1.04}'),
    "steps per second by their short name": ("SPS: 455\nloss 1", "SPS: 153\nloss 1"),
    "an elapsed time": ("elapsed: 31.02", "elapsed: 30.4"),
    "a clock": ("00:12 done", "00:09 done"),
    "a date and time of a log": ("2026-01-02 10:00:01,345 INFO loss=0.5", "2026-01-02 10:07:59,002 INFO loss=0.5"),
    "the width that a number is padded to": ("took  9.9s loss 1", "took 10.1s loss 1"),
    "a bar that was drawn over": ("1/3\r2/3\rloss 0.5", "1/3\rloss 0.5"),
    "another line in a traceback": (
        'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\nValueError: no',
        'Traceback (most recent call last):\n  File "a.py", line 9, in <module>\n    g()\nValueError: no',
    ),
    "a warning": ("a.py:3: UserWarning: odd\n  x = 1\nloss 1", "loss 1"),
}
OTHER = {
    "a figure": ("acc: 0.4500", "acc: 0.0000", "prints 0.0000 instead of 0.4500 in “acc: #”"),
    "a line less": ("saved best\nloss 1", "loss 1", "does not print “saved best”"),
    "a line more": ("loss 1", "saved best\nloss 1", "prints “saved best”, which the original does not"),
    "a line more often": ("saved\nloss 1", "saved\nsaved\nloss 1", "prints “saved” 2 times instead of 1"),
    "another order": ("a\nb", "b\na", "prints “b” before “a”"),
    "steps of time": ("timesteps: 400", "timesteps: 300", "prints 300 instead of 400 in “timesteps: #”"),
    "cells of a row": ("1,2,3.5", "1,3,3.5", "prints 3 instead of 2 in “#,#,#”"),
    "an exception": ("ValueError: no", "TypeError: no", "does not print “ValueError: no”"),
    "one that is not a number": ("loss nan", "loss 0.5", "prints 0.5 instead of nan in “loss #”"),
}


def compared(before: str, after: str, *others: str, disturbed: float | None = None) -> list[str]:
    first, second, *runs = (read_text(text, {}) for text in (before, after, *others))
    return differences(first, second, Noise(first, runs, disturbed))


@pytest.mark.parametrize("name", SAME)
def test_figures_of_time_and_places_in_the_source_may_differ(name: str) -> None:
    assert compared(*SAME[name]) == []


@pytest.mark.parametrize("name", OTHER)
def test_everything_else_that_is_printed_is_the_same(name: str) -> None:
    before, after, told = OTHER[name]
    assert compared(before, after)[0] == told


def test_a_figure_that_the_original_itself_changes_from_run_to_run_may_differ() -> None:
    assert compared("seed 17\nloss 0.5", "seed 99\nloss 0.5", "seed 3\nloss 0.5") == []
    assert compared("seed 17\nloss 0.5", "seed 99\nloss 0.6", "seed 3\nloss 0.5") != []


def test_a_rounding_fix_may_move_a_figure_as_far_as_rounding_moves_the_originals_own() -> None:
    before, disturbed = "loss 0.5000\nloss 0.4000", "loss 0.5002\nloss 0.4000"
    assert compared(before, "loss 0.5015\nloss 0.4010", disturbed, disturbed=1e-7) == []
    assert compared(before, "loss 0.5050\nloss 0.4000", disturbed, disturbed=1e-7) != []


def test_a_rounding_fix_may_move_the_last_printed_digit_but_no_count() -> None:
    assert compared("acc 0.8125", "acc 0.8126", "acc 0.8125", disturbed=1e-7) == []
    assert compared("acc 0.8125", "acc 0.8127", "acc 0.8125", disturbed=1e-7) != []
    assert compared("57 right", "58 right", "57 right", disturbed=1e-7) != []


def test_percent_without_a_decimal_is_a_rounded_share_and_no_count() -> None:
    assert compared("57/278 right (21%)", "57/278 right (20%)", "57/278 right (21%)", disturbed=1e-7) == []
    assert compared("57/278 right (21 %)", "57/278 right (19 %)", "57/278 right (21 %)", disturbed=1e-7) != []
    assert compared("accuracy 21%", "accuracy 20%", "accuracy 21%") != []


def test_folders_of_a_run_stand_for_the_same_in_every_run() -> None:
    one, other = (
        read_text("saved to /copies/1/out.pt", {"/copies/1": "<root>"}),
        read_text("saved to /copies/2/out.pt", {"/copies/2": "<root>"}),
    )
    assert differences(one, other, Noise(one, ())) == []
