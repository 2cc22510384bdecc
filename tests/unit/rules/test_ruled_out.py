"""What a finding rules out: an ailment that looks alike, with the value that speaks against it."""

from __future__ import annotations

from functools import partial

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Trace, drawn
from diagnose.trace import Collective

RULES = plugins.load().rules


def ruled_out(rule: str, trace: Trace) -> list[str]:
    """Of all claims of a rule about a recording."""
    return [said for one in RULES[rule].check(Measures(trace)) if isinstance(one, Claim) for said in one.ruled_out]


def test_launches_rule_out_a_host_that_is_ahead() -> None:
    trace = drawn("host: ol ol ol ol ol\ngpu :   k  k  k  k  k\nstep:                |", repeat=4, unit_ns=10_000)
    assert ruled_out("launch-bound", trace) == [
        "a host ahead of its device: it issues work for 147 µs per step, the device works for 50.0 µs"
    ]


def test_waits_rule_out_a_slow_host_where_it_is_none() -> None:
    waits = drawn("host: ol sssssss  ol\ngpu :   kkkkkkk     kkkk\nstep:                   |", repeat=4, unit_ns=20_000)
    assert ruled_out("host-sync", waits) == [
        "a slow host: without its waits it issues work for 193 µs per step, the device works for 220 µs"
    ]


def test_a_slow_host_that_waits_besides_is_not_ruled_out() -> None:
    slow = drawn("host: olololol s ol\ngpu :   k k k k    k\nstep:               |", repeat=4, unit_ns=20_000)
    assert [one for one in RULES["host-sync"].check(Measures(slow)) if isinstance(one, Claim)]
    assert ruled_out("host-sync", slow) == []


def test_a_loader_rules_out_what_the_device_hides() -> None:
    trace = drawn("load: wwwwww\nhost:       ol\ngpu : u       kkkk\nopt :        O    ", repeat=4)
    assert ruled_out("input-bound", trace) == [
        "a wait that the device's work hides: training is in the loader for 6.00 ms per step, the device idles for "
        "5.00 ms of it"
    ]


EXPOSED = partial(
    drawn,
    """
    gpu   : kkk    kkkx
    gpu 20:    aaaa
    opt   :           O
    """,
    repeat=4,
    kernels={"x": "void multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
    device_names=("NVIDIA H200",) * 8,
)


def test_collectives_rule_out_a_slow_link_where_the_link_is_in_use() -> None:
    fast = EXPOSED(comms={"a": Collective("all_to_all", 1 << 30, 8, "ep")})
    assert ruled_out("exposed-communication", fast) == [
        "a slow link: the fastest large collective moves 234.88 GB/s over the bus, NVLink 450"
    ]
    unknown = EXPOSED(comms={"a": Collective("all_to_all", 1 << 30, 8, "ep")}, device_names=("an accelerator",) * 8)
    assert ruled_out("exposed-communication", unknown) == []
