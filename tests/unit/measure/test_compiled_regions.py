"""Graph breaks and recompilations: read from a recording's regions, and from what Dynamo keeps on a live run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose import plugins
from diagnose.collect.inside.probes.compiler_log import CompilerLog
from diagnose.collect.inside.source_ownership import Ownership
from diagnose.measure import Measures
from diagnose.model import Confidence, Site
from diagnose.rule import Claim, Trace, drawn

OPS = {"r": "Torch-Compiled Region: 0/0", "q": "Torch-Compiled Region: 1/0", "g": "CompiledFunction"}
SPLIT = """
    op  : rrrrrrrrrrrrrrr
    op  :  ggg       ggg
    op  :         qqqqqq
    host:   l         l
    gpu :    kkkk      kkkk
    step:                  |
"""
HIDDEN = """
    op  : rrrrrrr
    op  :  gg gg
    op  :    qqq
    host:   l  l  sssssssssssssss
    gpu :    kkkkkkkkkkKKKKKKKKKK
    step:                        |
"""


def claims(rule: str, trace: Trace) -> list[Claim]:
    found = plugins.load().rules[rule].check(Measures(trace))
    return [answer for answer in found if isinstance(answer, Claim)]


def test_time_between_graphs_begins_after_the_first_and_ends_with_the_last() -> None:
    compiled = Measures(drawn(SPLIT, ops=OPS)).compiled_regions
    assert compiled.resumed.tolist() == [False, True]
    assert list(compiled.between) == [(4_000_000, 11_000_000)]


def test_what_each_graph_does_around_its_operators_is_done_once_without_a_break() -> None:
    """One graph has two operators, the other one: what lies around them, until the last, is lost to the break."""
    drawing = """
        op  : rrrrrrrrrrrrrrrrrr
        op  :  gggggg   ggggggg
        op  :   oo o      oo
        op  :          qqqqqqqq
        host:   l  l      l
        gpu :    kk kkk    kkkk
        step:                    |
    """
    compiled = Measures(drawn(drawing, ops=OPS | {"o": "triton_poi_fused_add_0"})).compiled_regions
    assert list(compiled.split) == [(0, 18_000_000)]
    assert list(compiled.between) == [(6_000_000, 12_000_000)]


def test_a_host_that_is_behind_gains_all_that_breaks_cost_it_also_while_the_device_works() -> None:
    split = """
        op  : rrrrrrrrrrrrrrr
        op  :  ggg       ggg
        op  :         qqqqqq
        host:   l         l
        gpu :    kkkk      kkkk
        step:               |
    """
    measures = Measures(drawn(split, repeat=4, ops=OPS))
    (claim,) = claims("graph-breaks", measures.trace)
    between, idle = measures.compiled_regions.between, measures.idle_of()
    assert claim.recoverable_ns > (between & idle).total_ns


def test_a_break_under_device_work_is_a_hint_without_a_figure() -> None:
    (claim,) = claims("graph-breaks", drawn(HIDDEN, repeat=4, ops=OPS, kernels={"K": "other_kernel"}))
    assert (claim.recoverable_ns, claim.confidence) == (0, Confidence.HINT)


def test_the_line_of_a_break_comes_from_the_function_that_continues() -> None:
    trace = drawn(
        SPLIT.replace("    step:", "    call:         qqqqqq\n    step:"),
        repeat=4,
        ops=OPS,
        frames={"q": "model.py(27): torch_dynamo_resume_in_forward_at_27"},
    )
    (claim,) = claims("graph-breaks", trace)
    assert [(place.file, place.line, place.function) for place in claim.where] == [("model.py", 27, "forward")]


def test_a_function_that_dynamo_gave_up_is_a_hint() -> None:
    given_up = Site("graph_break", "model.py", 12, "forward", {"reason": "print", "skipped": True})
    alone = drawn(
        """
        op  : rrrrr     rrrrr
        op  :  ggg       ggg
        host:   l         l
        gpu :    kkkk      kkkk
        step:                  |
        """,
        repeat=4,
        ops=OPS,
        sites=(given_up,),
    )
    (claim,) = claims("graph-breaks", alone)
    assert (claim.recoverable_ns, claim.where[0].line) == (0, 12)


@dataclass
class Dynamo:
    """What `CompilerLog` reads of `torch._dynamo.utils`."""

    graph_break_reasons: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)

    def get_compilation_metrics(self) -> list[Any]:
        return self.metrics


def compiled(number: str, **known: Any) -> SimpleNamespace:
    empty = {"fail_reason": None, "recompile_reason": None, "fail_user_frame_filename": None}
    at = {
        "compile_id": number,
        "start_time_us": 5,
        "co_filename": "model.py",
        "co_firstlineno": 7,
        "co_name": "forward",
    }
    return SimpleNamespace(**(empty | at | known))


def broken(line: int, reason: str, function: str = "forward") -> SimpleNamespace:
    frame = SimpleNamespace(filename="model.py", lineno=line, name=function)
    return SimpleNamespace(reason=reason, user_stack=[frame])


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Dynamo:
    made = Dynamo()
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", made)
    return made


def drained(log: CompilerLog) -> list[dict[str, Any]]:
    return [json.loads(line) for _, lines in log.drain() for line in lines.splitlines()]


def recompiled(limit: bool) -> tuple[Site, ...]:
    """Three recompilations as a live run notes them; at the third, which fails, no file is known."""
    reason = "tensor 'x' size mismatch at index 0. expected {}, actual {}"
    return tuple(
        Site(
            "recompile",
            "" if last else "model.py",
            0 if last else 12,
            "" if last else "forward",
            {"reason": reason.format(length, length + 7), "start_ns": length, "limit": last},
        )
        for length, last in ((8, False), (15, False), (22, limit))
    )


def test_a_function_that_runs_uncompiled_since_the_first_steps_is_a_hint_with_its_line() -> None:
    (claim,) = claims("recompiling", drawn(SPLIT, repeat=4, ops=OPS, sites=recompiled(limit=True)))
    assert claim.summary == (
        "`forward` was compiled again until Dynamo reached its limit, and what fits none of the versions "
        "runs uncompiled since: "
        "tensor 'x' size mismatch at index 0. expected …, actual …, 3 times"
    )
    assert (claim.confidence, claim.recoverable_ns) == (Confidence.HINT, 0)
    assert [(place.file, place.line) for place in claim.where] == [("model.py", 12)]


def test_recompilations_of_the_first_steps_that_came_to_an_end_are_nothing() -> None:
    assert claims("recompiling", drawn(SPLIT, repeat=4, ops=OPS, sites=recompiled(limit=False))) == []


def test_each_break_is_told_once_with_its_line_and_its_reason(dynamo: Dynamo) -> None:
    log = CompilerLog(Ownership())
    dynamo.graph_break_reasons += [
        broken(9, "Tensor.item() call\n  Explanation: …"),
        broken(9, "again"),
        broken(16, "generic_jump TensorVariable()", "torch_dynamo_resume_in_forward_at_9"),
    ]
    found = [(one["kind"], one["line"], one["function"], one["arguments"]["reason"]) for one in drained(log)]
    assert found == [
        ("graph_break", 9, "forward", "Tensor.item() call"),
        ("graph_break", 16, "forward", "a branch on the value of a tensor"),
    ]
    assert drained(log) == []


def test_a_reset_of_the_compiler_is_survived(dynamo: Dynamo) -> None:
    log = CompilerLog(Ownership())
    dynamo.graph_break_reasons += [broken(9, "first"), broken(10, "second")]
    drained(log)
    dynamo.graph_break_reasons[:] = [broken(11, "third")]
    assert [one["line"] for one in drained(log)] == [11]


def test_every_recompilation_is_told_with_the_guard_that_failed(dynamo: Dynamo) -> None:
    log = CompilerLog(Ownership())
    dynamo.metrics += [
        compiled("0/0"),
        compiled("0/1", recompile_reason="0/0: tensor 'x' size mismatch at index 0. expected 3, actual 4"),
        compiled(
            "0/2",
            recompile_reason="0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5",
            fail_reason="Dynamo recompile limit exceeded\n  Explanation: …",
        ),
    ]
    first, second = drained(log)
    assert (first["kind"], first["line"], first["arguments"]["start_ns"]) == ("recompile", 7, 5_000)
    assert first["arguments"]["reason"] == "tensor 'x' size mismatch at index 0. expected 3, actual 4"
    assert (first["arguments"]["limit"], second["arguments"]["limit"]) == (False, True)
    assert drained(log) == []


@pytest.mark.parametrize(
    "words",
    [
        "cache_size_limit reached",
        "accumulated_cache_size_limit reached",
        "recompile_limit reached",
        "Dynamo recompile limit exceeded\n  Explanation: …",
    ],
)
def test_versions_of_torch_name_the_limit_in_words_of_their_own(dynamo: Dynamo, words: str) -> None:
    dynamo.metrics.append(compiled("0/8", recompile_reason="0/7: flag == False", fail_reason=words))
    (one,) = drained(CompilerLog(Ownership()))
    assert (one["kind"], one["arguments"]["limit"]) == ("recompile", True)


def test_a_recompilation_that_fails_of_what_it_compiles_has_reached_no_limit(dynamo: Dynamo) -> None:
    """The first call took another branch: only the second one meets the loop that cannot be compiled."""
    dynamo.metrics.append(
        compiled(
            "0/1",
            recompile_reason="0/0: flag == False",
            fail_reason="Call to `torch._dynamo.graph_break()`\n  Explanation: User-inserted graph break.",
            fail_user_frame_filename="model.py",
            fail_user_frame_lineno=11,
        )
    )
    again, skipped = drained(CompilerLog(Ownership()))
    assert (again["kind"], again["arguments"]["limit"]) == ("recompile", False)
    assert (skipped["kind"], skipped["line"], skipped["arguments"]["skipped"]) == ("graph_break", 11, True)


def test_a_function_given_up_for_a_break_in_a_loop_names_the_line(dynamo: Dynamo) -> None:
    log = CompilerLog(Ownership())
    dynamo.metrics.append(
        compiled("0/0", fail_reason="print", fail_user_frame_filename="model.py", fail_user_frame_lineno=11)
    )
    (one,) = drained(log)
    assert (one["kind"], one["line"], one["arguments"]["skipped"]) == ("graph_break", 11, True)


def test_nothing_is_told_before_the_compiler_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert drained(CompilerLog(Ownership())) == []
