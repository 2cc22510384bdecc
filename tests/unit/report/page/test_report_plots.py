"""The pictures of the page: what is drawn stands for what was measured, and stays small."""

from __future__ import annotations

import math
import re
from pathlib import Path

import diagnose
from diagnose.measure.profile.counter_series import MOST_POINTS, MOST_SERIES
from diagnose.measure.profile.kernel_rows import MOST_ROWS
from diagnose.measure.profile.sampled_calls import MOST_CALLS
from diagnose.model import CounterSeries, KernelRow, Roof, SampledCall, StepProfile
from diagnose.report.page.counter_charts import counter_charts
from diagnose.report.page.flame_graph import ROW, flame_graph
from diagnose.report.page.flame_graph import WIDTH as FLAME_WIDTH
from diagnose.report.page.html import render
from diagnose.report.page.roofline_plot import roofline_plot
from diagnose.session import State

SAMPLES = Path(__file__).parents[4] / "sample_traces"
ROOF = Roof({"fp32": 60e12, "bf16": 900e12}, 4e12, "data sheet of a device")


def kernel(name: str, flops: int, moved: int, time_ns: int, form: str | None = None) -> KernelRow:
    kind = "matmul" if form else "pointwise"
    return KernelRow(name, kind, time_ns, 1, flops=flops, moved_bytes=moved, known_ns=time_ns, format=form)


def profile(*kernels: KernelRow, roof: Roof | None = ROOF) -> StepProfile:
    return StepProfile(0, 1, 10_000_000, kernels, roof=roof)


PRODUCT = kernel("product", 45_000_000_000, 300_000_000, 1_000_000, "fp32")  # 45 TFLOP/s at 150 operations per byte
SUM = kernel("sum", 100_000_000, 800_000_000, 250_000)  # 0.4 TFLOP/s at 0.125: 3.2 of 4 TB/s


def test_a_kernel_lies_as_far_below_its_ceiling_as_it_is() -> None:
    plot = roofline_plot(profile(PRODUCT, SUM))
    assert plot is not None
    (top,) = [line for line in plot.ceilings if line.words == "fp32: 60 TFLOP/s"]
    (product,) = [point for point in plot.points if point.words.startswith("product; fp32; 45 TFLOP/s at 150")]
    height = float(top.points.split(",")[1].split()[0])
    decade = plot.up[0].at - plot.up[1].at
    assert math.isclose((product.y - height) / decade, math.log10(60 / 45), abs_tol=0.01)


def test_what_is_bound_by_memory_lies_below_the_slope() -> None:
    plot = roofline_plot(profile(PRODUCT, SUM))
    assert plot is not None
    slope = next(line for line in plot.ceilings if line.words == "memory: 4 TB/s")
    (x1, y1), (x2, y2) = (tuple(map(float, pair.split(","))) for pair in slope.points.split())
    (point,) = [point for point in plot.points if point.words.startswith("sum; 400 GFLOP/s at 0.125")]
    above = y1 + (point.x - x1) / (x2 - x1) * (y2 - y1)
    decade = plot.up[0].at - plot.up[1].at
    assert math.isclose((point.y - above) / decade, math.log10(4 / 3.2), abs_tol=0.01)


def test_areas_are_times() -> None:
    plot = roofline_plot(profile(PRODUCT, SUM))
    assert plot is not None
    small, large = plot.points
    assert math.isclose((large.radius / small.radius) ** 2, 4, rel_tol=0.05)


def test_only_formats_that_the_program_uses_have_a_ceiling() -> None:
    plot = roofline_plot(profile(PRODUCT))
    assert plot is not None
    assert [line.words.split(":")[0] for line in plot.ceilings] == ["fp32", "memory"]


def test_unknown_kernels_are_left_out_and_the_share_says_so() -> None:
    plot = roofline_plot(profile(PRODUCT, KernelRow("who knows", "other", 1_000_000, 1)))
    assert plot is not None
    assert (len(plot.points), plot.shown) == (1, 0.5)


def test_without_ceilings_or_kernels_there_is_no_plot() -> None:
    assert roofline_plot(profile(PRODUCT, roof=None)) is None
    assert roofline_plot(profile(KernelRow("who knows", "other", 1_000_000, 1))) is None


def call(depth: int, begin: int, samples: int, function: str, file: str = "/project/train.py") -> SampledCall:
    return SampledCall(depth, begin, samples, function, file, 7, owned=file.startswith("/project"))


def test_boxes_are_as_wide_as_their_samples() -> None:
    calls = (call(0, 0, 100, "main"), call(1, 0, 75, "forward", "/lib/torch/nn.py"), call(1, 75, 25, "load"))
    graph = flame_graph(calls, "/project")
    assert graph is not None
    assert [(box.x, box.y, box.width) for box in graph.boxes] == [
        (0, 0, FLAME_WIDTH),
        (0, ROW, 0.75 * FLAME_WIDTH),
        (0.75 * FLAME_WIDTH, ROW, 0.25 * FLAME_WIDTH),
    ]
    assert graph.boxes[2].words == "load, train.py:7: 25 %, 25 of 100 samples"
    assert (graph.samples, graph.height) == (100, 2 * ROW)
    assert len({box.colour for box in graph.boxes}) == 2


def test_without_samples_there_is_no_flame_graph() -> None:
    assert flame_graph((), None) is None


def test_counters_that_change_are_drawn_and_others_are_named() -> None:
    charts = counter_charts(
        (
            CounterSeries("gpu.power_watts", 0, (0, 500_000_000, 1_000_000_000), (100.0, 300.0, 200.0)),
            CounterSeries("gpu.memory_used_bytes", 0, (0, 500_000_000, 1_000_000_000), (2.0**30,) * 3),
        )
    )
    assert charts is not None
    (power,) = charts.charts
    assert (power.title, power.low, power.high) == ("gpu.power_watts", "100 W", "300 W")
    assert power.points == "0.0,60.0 150.0,0.0 300.0,30.0"
    assert charts.constant == ("gpu.memory_used_bytes 1.00 GiB",)
    assert charts.span == "1.00 s"


def test_two_devices_are_told_apart() -> None:
    series = tuple(CounterSeries("gpu.power_watts", device, (0, 1, 2), (1.0, 2.0, 3.0)) for device in (0, 1))
    charts = counter_charts(series)
    assert charts is not None
    assert [one.title for one in charts.charts] == ["gpu.power_watts of device 0", "gpu.power_watts of device 1"]


def test_the_page_of_a_live_run_has_all_three() -> None:
    page = diagnose.analyze(SAMPLES / "h200_naive_gpt").html()
    headings = ("Kernels below the device's ceilings", "Where the training thread was", "Counters over the run")
    assert [heading for heading in headings if heading not in page] == []
    assert re.search(r"<title>main, /project/train.py:\d+: \d+ %", page)


def test_the_fullest_page_stays_small() -> None:
    """All that a profile may hold of these, with long names."""
    long = "function_of_some_length" * 8
    full = StepProfile(
        0,
        4,
        10_000_000,
        tuple(kernel(f"{long}{at}", 10**9, 10**7, 10**5, "bf16") for at in range(MOST_ROWS)),
        roof=ROOF,
        calls=(call(0, 0, MOST_CALLS, long), *(call(1, at, 1, long) for at in range(MOST_CALLS - 1))),
        counters=tuple(
            CounterSeries(f"{long}{at}", 0, tuple(range(MOST_POINTS)), tuple(map(float, range(MOST_POINTS))))
            for at in range(MOST_SERIES)
        ),
    )
    assert len(render(State(profile=full)).encode()) < 1_500_000


def test_counters_of_the_host_are_named_in_words_with_their_unit() -> None:
    times = (0, 1_000_000_000)
    charts = counter_charts(
        (CounterSeries("host.others_cpu", -1, times, (0.0, 125.6)), CounterSeries("host.queued", -1, times, (1.0, 9.5)))
    )
    assert charts is not None
    assert [(one.title, one.high) for one in charts.charts] == [
        ("CPU of other programs", "125.6 % of a core"),
        ("time ready without a core", "9.5 %"),
    ]
