"""A wait shows a sign of life, ever more seldom, and says what is waited for."""

from __future__ import annotations

from diagnose.collect.launch import StallNotice


def told(silence: StallNotice, *, until_s: int, since_s: int = 0) -> list[str]:
    return [words for now_s in range(since_s, until_s) if (words := silence.words(now_s))]


def test_a_first_step_that_does_not_come_is_told_ever_more_seldom() -> None:
    assert told(StallNotice(0), until_s=130) == ["15 s so far", "30 s so far", "1 min so far", "2 min so far"]


def test_long_steps_are_told_from_the_last_one_on() -> None:
    silence = StallNotice(0)
    silence.broken(10)
    assert told(silence, since_s=10, until_s=69) == ["15 s since the last step", "30 s since the last step"]
    silence.broken(70)
    assert told(silence, since_s=70, until_s=86) == ["15 s since the last step"]


def test_a_look_that_comes_late_tells_of_a_wait_once() -> None:
    silence = StallNotice(0)
    assert silence.words(200) == "3 min 20 s so far"
    assert silence.words(201) is None
