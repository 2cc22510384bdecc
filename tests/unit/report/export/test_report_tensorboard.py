"""The event file of TensorBoard: its records are whole, and TensorBoard reads from it what was measured."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from diagnose import plugins
from diagnose.cli import main
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.report.export.tensorboard import FILE, _checksum, render
from diagnose.trace.readers import open_traces
from diagnose.units import NS_PER_MS

SAMPLES = Path(__file__).parents[4] / "sample_traces"
SAMPLE = SAMPLES / "h200_naive_gpt"


def test_checksums_are_those_of_castagnoli() -> None:
    """The check value of CRC-32C, `123456789`, is 0xE3069283; TFRecord rotates it by 15 and adds a constant."""
    plain = 0xE3069283
    masked = ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _checksum(b"123456789") == struct.pack("<I", masked)


def test_the_file_consists_of_whole_records(tmp_path: Path) -> None:
    assert main(["report", "--tensorboard", str(tmp_path / "logs"), str(SAMPLE)]) == 0
    data = (tmp_path / "logs" / FILE).read_bytes()
    count = 0
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert data[8:12] == _checksum(data[:8])
        assert data[12 + length : 16 + length] == _checksum(data[12 : 12 + length])
        data = data[16 + length :]
        count += 1
    assert count > 5


def test_each_rank_is_a_run_of_its_own() -> None:
    traces = open_traces([SAMPLES / "h200_straggler"])
    assert set(render(traces, diagnose(traces, plugins.load_rules()))) == {"rank0", "rank1"}


def test_it_is_written_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--tensorboard", "logs", "--format", "json", str(SAMPLE)]) == 2
    assert "leave out --format" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_steps_counters_and_tables(tmp_path: Path) -> None:
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    traces = open_traces([SAMPLE])
    for run, data in render(traces, diagnose(traces, plugins.load_rules())).items():
        (tmp_path / run).mkdir(exist_ok=True)
        (tmp_path / run / FILE).write_bytes(data)
    events = loader.EventAccumulator(str(tmp_path), size_guidance={loader.TENSORS: 0}).Reload()

    def scalars(tag: str) -> dict[int, float]:
        return {one.step: one.value for one in events.Scalars(tag)}

    whole = scalars("step/whole")
    lengths = [one.total_ns / NS_PER_MS for one in Measures(traces[0]).accountings]
    assert list(whole) == [1, 2, 3, 4]
    assert all(math.isclose(one, other, rel_tol=1e-6) for one, other in zip(whole.values(), lengths, strict=True))
    parts = [scalars(tag) for tag in events.Tags()["scalars"] if tag.startswith("step/") and tag != "step/whole"]
    assert all(math.isclose(sum(part[step] for part in parts), whole[step], rel_tol=1e-5) for step in whole)
    assert len(scalars("counter/allocator.allocated_bytes of device 0")) > 10
    (kernels,) = events.Tensors("kernels")
    assert b"matrix product" in kernels.tensor_proto.string_val[0]
    assert events.SummaryMetadata("kernels").plugin_data.plugin_name == "text"
