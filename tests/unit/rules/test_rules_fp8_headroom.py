"""Rules run where torch is not installed, and repeat what they have to know of kernels."""

from __future__ import annotations

from diagnose import plugins
from diagnose.kernels import fp8_linear


def test_the_layers_that_are_counted_are_those_that_multiply_in_fp8() -> None:
    known = plugins.load().rules["fp8-headroom"].check.__globals__
    for name in ("LEAST_WEIGHTS", "MOST_WIDENING", "MULTIPLE"):
        assert known[name] == getattr(fp8_linear, name), name
