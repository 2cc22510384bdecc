"""Every pattern finds what its examples show, with the same numbers, and leaves what only looks like it alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose import graph
from diagnose.graph.account import SiteRecord
from diagnose.graph.patterns import PATTERNS
from diagnose.graph.site import Example, Pattern

MATCHES = [(pattern, example) for pattern in PATTERNS for example in pattern.matches]
LOOK_ALIKES = [(pattern, example) for pattern in PATTERNS for example in pattern.leaves]


def name(value: Pattern | Example) -> str:
    return value.name if isinstance(value, Pattern) else value.program.__name__.strip("_")


def compiled(
    pattern: Pattern, example: Example, inner: str, inputs: list[torch.Tensor]
) -> tuple[Any, list[SiteRecord]]:
    """What the compiled program gives, and what is said of the pattern's sites."""
    torch.compiler.reset()
    before = len(graph.report().graphs)
    options: dict[str, Any] = {"inner": inner, "rewrite": pattern.name}
    result = torch.compile(example.program, backend="diagnose", options=options)(*inputs)
    records = [site for record in graph.report().graphs[before:] for site in record.sites]
    return result, [site for site in records if site.pattern == pattern.name]


def gradients(result: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    outputs = [part for part in (result if isinstance(result, tuple) else (result,)) if part.requires_grad]
    cotangents = [torch.full_like(output, 0.5 + place) for place, output in enumerate(outputs)]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize(("pattern", "example"), MATCHES, ids=name)
def test_an_example_is_rewritten_and_computes_the_same(pattern: Pattern, example: Example, inner: str) -> None:
    inputs = example.inputs()
    before = [tensor.detach().clone() for tensor in inputs]
    result, sites = compiled(pattern, example, inner, inputs)
    assert [site.left for site in sites] == [""]
    expected = example.program(*inputs)
    half = any(tensor.dtype == torch.bfloat16 for tensor in inputs)
    rtol, atol = (2e-2, 2e-2) if half else (1e-5, 1e-6)
    torch.testing.assert_close(result, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(gradients(result, inputs), gradients(expected, inputs), rtol=rtol, atol=atol)
    assert all(torch.equal(one, other) for one, other in zip(before, inputs, strict=True))


@pytest.mark.parametrize(("pattern", "example"), LOOK_ALIKES, ids=name)
def test_a_look_alike_is_left_alone(pattern: Pattern, example: Example) -> None:
    inputs = example.inputs()
    result, sites = compiled(pattern, example, "eager", inputs)
    assert sites == []
    torch.testing.assert_close(result, example.program(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("pattern", PATTERNS, ids=name)
def test_a_pattern_shows_both(pattern: Pattern) -> None:
    assert pattern.matches
    assert len(pattern.leaves) >= 3


def test_the_site_names_its_line_in_the_source() -> None:
    (pattern,) = (each for each in PATTERNS if each.name == "linear-cross-entropy")
    example = pattern.matches[0]
    _, (site,) = compiled(pattern, example, "eager", example.inputs())
    assert site.file.endswith("patterns/linear_cross_entropy.py")
    first = example.program.__code__.co_firstlineno
    assert first < site.line <= first + 1
