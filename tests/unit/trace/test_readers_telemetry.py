"""What samplers beside a run write of its GPUs, as counters under one set of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces

ROOT = Path(__file__).resolve().parents[4] / "shared" / "traces"
LOGGED = ROOT / "karpathy__nanoGPT" / "gpu_metrics.csv"


def opened(folder: Path, text: str) -> Trace:
    path = folder / "telemetry.csv"
    path.write_text(text)
    (trace,) = open_traces([path])
    return trace


def rows(trace: Trace) -> list[tuple[int, int, str, float]]:
    table = trace.counters
    return [
        (int(time), int(device), trace.names[name], float(value))
        for time, device, name, value in zip(table.time_ns, table.device, table.name, table.value, strict=True)
    ]


def test_a_query_has_units_in_its_cells(tmp_path: Path) -> None:
    trace = opened(
        tmp_path,
        "timestamp, index, name, power.draw [W], memory.used [MiB], utilization.gpu [%], "
        "clocks_throttle_reasons.active\n"
        "2024/10/30 18:42:33.189, 3, NVIDIA H100, 22.89 W, 2 MiB, 97 %, 0x0000000000000004\n",
    )
    at = 1_730_313_753_189_000_000
    assert rows(trace) == [
        (at, 3, "gpu.power_watts", 22.89),
        (at, 3, "gpu.memory_used_bytes", 2 * 1024**2),
        (at, 3, "gpu.utilization", 97),
        (at, 3, "gpu.throttle_reasons", 4),
    ]


def test_of_two_columns_that_may_number_devices_the_one_that_tells_them_apart_does(tmp_path: Path) -> None:
    trace = opened(
        tmp_path,
        "timestamp,gpu,index,power.draw\n2024-10-30T18:42:33Z,0, 0, 71.5\n2024-10-30T18:42:33Z,1, 0, 72.5\n",
    )
    assert [device for _, device, _, _ in rows(trace)] == [0, 1]


def test_what_is_not_available_is_no_value(tmp_path: Path) -> None:
    trace = opened(
        tmp_path,
        "timestamp,index,power.draw [W],temperature.gpu\n"
        "2024-10-30T18:42:33Z,0,[N/A],41\n"
        "2024-10-30T18:42:34Z,0,[Not Supported],42\n",
    )
    assert [(name, value) for _, _, name, value in rows(trace)] == [
        ("gpu.temperature_celsius", 41),
        ("gpu.temperature_celsius", 42),
    ]


def test_dmon_repeats_its_header_and_says_nothing_with_a_dash(tmp_path: Path) -> None:
    header = "# gpu    pwr  gtemp     sm    mem     fb \n# Idx      W      C      %      %     MB \n"
    trace = opened(
        tmp_path,
        header + "    0     71     45     98     40     1 \n" + header + "    1      -     46      -      -     - \n",
    )
    assert [row[1:] for row in rows(trace)] == [
        (0, "gpu.power_watts", 71),
        (0, "gpu.temperature_celsius", 45),
        (0, "gpu.utilization", 98),
        (0, "gpu.memory_utilization", 40),
        (0, "gpu.memory_used_bytes", 1024**2),
        (1, "gpu.temperature_celsius", 46),
    ]
    assert {row[0] for row in rows(trace)} == {-1}
    assert "-o DT" in trace.warnings[0]


def test_dmon_with_date_and_time(tmp_path: Path) -> None:
    text = "#Date       Time        gpu   sm \n#YYYYMMDD   HH:MM:SS    Idx    % \n 20241030   18:42:33      0   98 \n"
    assert rows(opened(tmp_path, text)) == [(1_730_313_753_000_000_000, 0, "gpu.utilization", 98)]


def test_dcgm_writes_a_line_a_value(tmp_path: Path) -> None:
    text = "GPUId,TimeStampUs,Field,Values\n2,1730313753189000,1002,0.5\n2,1730313753189000,155,300.5\n"
    at = 1_730_313_753_189_000_000
    assert rows(opened(tmp_path, text)) == [(at, 2, "gpu.sm_activity", 50), (at, 2, "gpu.power_watts", 300.5)]


@pytest.mark.parametrize(
    "stamp", ["1730313753.189", "1730313753189", "1730313753189000", "2024-10-30T19:42:33.189+01:00"]
)
def test_times_in_any_spelling(tmp_path: Path, stamp: str) -> None:
    assert rows(opened(tmp_path, f"timestamp,gpu,power_W\n{stamp},0,1\n"))[0][0] == 1_730_313_753_189_000_000


def test_cut_lines_are_counted(tmp_path: Path) -> None:
    trace = opened(tmp_path, "timestamp,gpu,power_W\n1730313753,0,1\n17303\n")
    assert len(trace.counters) == 1
    assert "1 lines are incomplete" in trace.warnings[0]


@pytest.mark.parametrize(
    "text", ["timestamp,gpu,power_W\n", "time,loss,step\n1,2,3\n", "timestamp,gpu,power_W\n1,0,high\n"]
)
def test_tables_without_telemetry_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        opened(tmp_path, text)


@pytest.mark.skipif(not LOGGED.is_file(), reason="no collection of public traces lies beside the repository")
def test_a_real_log_of_eight_gpus() -> None:
    (trace,) = open_traces([LOGGED])
    assert sorted(set(trace.counters.device.tolist())) == list(range(8))
    assert len(trace.counters) == 3 * 36_112
    assert (trace.counters.value[trace.counters.name == trace.names.index("gpu.power_watts")] > 50).all()
    assert trace.warnings == ()
