"""`diagnose calibrate`: what is measured, how it is kept, and which of it holds for a watched process."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from watching import LIMIT_S

from diagnose.calibration.record import KINDS, Calibration, Curve, Device, Point, bus_share, decode, encode
from diagnose.calibration.store import keep, name_of
from diagnose.cli import main
from diagnose.collect.calibrations import ceilings_for, curves_for, folder, network_settings, stored
from diagnose.collect.inside.process.calibrations import calibrated
from diagnose.errors import InputError
from diagnose.model import CollectiveCurve, Facts
from diagnose.report.terminal.calibration import render
from diagnose.units import NS_PER_MS, NS_PER_S

ROOT = Path(__file__).resolve().parents[3]
SOCKETS = {"NCCL_P2P_DISABLE": "1"}
FACTS = {"device_name": "NVIDIA H200", "torch_version": "2.11.0"}


def curve(kind: str = "all_reduce", ranks: int = 2, *times_ns: int) -> Curve:
    points = tuple(Point(1 << 20 << at, time, time, time) for at, time in enumerate(times_ns or (30_000, 50_000)))
    return Curve(kind, ranks, 1, tuple(range(ranks)), points)


def calibration(measured_ns: int = 1, settings: dict[str, str] | None = None, *curves: Curve) -> Calibration:
    return Calibration(
        measured_ns,
        "2.11.0",
        Device("NVIDIA H200", {"bf16": 7e14}, 4e12, 3000, 9000),
        world_size=2,
        library="nccl 2.28.9",
        network_settings=settings or {},
        curves=curves or (curve(),),
    )


def as_read(*calibrations: Calibration) -> list[dict[str, Any]]:
    return sorted((json.loads(encode(one)) for one in calibrations), key=lambda one: -int(one["measured_ns"]))


# Bandwidth as nccl-tests define it


@pytest.mark.parametrize(
    ("kind", "ranks", "share"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 2, 0.5),
        ("all_to_all", 8, 0.875),
        ("send_recv", 4, 1.0),
    ],
)
def test_the_bus_carries_what_each_rank_must_send(kind: str, ranks: int, share: float) -> None:
    assert bus_share(kind, ranks) == share


def test_a_mebibyte_in_30_microseconds_among_two_is_35_gigabytes_per_second() -> None:
    one = curve()
    assert one.points[0].bytes_per_s == pytest.approx(34.95e9, rel=1e-3)
    assert one.bus_bytes_per_s(one.points[0]) == pytest.approx(34.95e9, rel=1e-3)  # 2 (n − 1) / n is 1 for two ranks


# Kept and read back


def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    path = keep(calibration(), tmp_path)
    assert decode(path) == calibration()
    assert json.loads(path.read_text())["curves"][0]["points"][0]["bus_bytes_per_s"] == round(2**20 / 30e-6)


def test_measuring_again_under_the_same_conditions_takes_the_place_of_the_older(tmp_path: Path) -> None:
    assert keep(calibration(1), tmp_path) == keep(calibration(2), tmp_path)
    assert [record["measured_ns"] for record in stored(tmp_path)] == [2]


def test_another_network_setting_is_another_calibration() -> None:
    assert name_of(calibration(1)) != name_of(calibration(1, SOCKETS))


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"schema": 99, "measured_ns": 1}', "\xff", "[" * 100_000])
def test_a_damaged_file_is_left_out_and_named_when_asked_for(tmp_path: Path, text: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(text.encode("latin-1"))
    keep(calibration(), tmp_path)
    assert len(stored(tmp_path)) == 1
    with pytest.raises(InputError, match="calibrat"):
        decode(path)


def test_calibrations_lie_where_the_environment_says() -> None:
    assert folder({"DIAGNOSE_CALIBRATIONS": "/data/here"}) == Path("/data/here")
    assert folder({"DIAGNOSE_CALIBRATIONS": "off"}) is None
    assert folder({"XDG_DATA_HOME": "/data"}) == Path("/data/diagnose/calibrations")


# What holds for a process


def test_ceilings_hold_for_the_same_device_and_torch() -> None:
    records = as_read(calibration())
    assert ceilings_for(records, FACTS) == {"bf16": 7e14, "memory": 4e12}
    assert ceilings_for(records, {**FACTS, "device_name": "NVIDIA A100"}) is None
    assert ceilings_for(records, {**FACTS, "torch_version": "2.12.0"}) is None


def test_curves_hold_for_the_same_library_and_settings() -> None:
    records = as_read(calibration(1), calibration(2, SOCKETS, curve("all_reduce", 2, 9_000_000)))
    fast = curves_for(records, FACTS, "nccl 2.28.9", {})
    slow = curves_for(records, FACTS, "nccl 2.28.9", SOCKETS)
    assert fast is not None and [one["time_ns"] for one in fast] == [[30_000, 50_000]]
    assert slow is not None and [one["time_ns"] for one in slow] == [[9_000_000]]
    assert curves_for(records, FACTS, "nccl 2.29.0", {}) is None
    assert curves_for(records, FACTS, "gloo", {}) is None


class Gloo:
    """`torch.distributed`, as far as a watched process asks it."""

    @staticmethod
    def get_backend() -> str:
        return "gloo"


def test_a_watched_process_notes_what_holds_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CALIBRATIONS", str(tmp_path / "none"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    said = {"device_name": None, "torch_version": "2.13.0"}
    settings = {"GLOO_SOCKET_IFNAME": "lo"}
    assert calibrated(None, Gloo, said) == {"network_settings": settings}
    monkeypatch.setenv("DIAGNOSE_CALIBRATIONS", str(tmp_path))
    alone = Device(None, {"fp32": 1e11}, 1e10)
    elsewhere = Calibration(1, "2.13.0", alone, 2, 1, "gloo", settings, (curve(),), host="another")
    keep(elsewhere, tmp_path)
    none = {"network_settings": settings, "ceilings": None, "curves": None}
    assert calibrated(None, Gloo, said) == none  # a processor without a name is that of its host
    keep(replace(elsewhere, host=platform.node()), tmp_path)
    found = calibrated(None, Gloo, said)
    assert found["ceilings"] == {"fp32": 1e11, "memory": 1e10}
    facts = msgspec.convert(found, Facts)
    assert facts.curves == (CollectiveCurve("all_reduce", 2, 1, (1 << 20, 2 << 20), (30_000, 50_000)),)
    assert "curves" not in calibrated(None, None, said)  # ranks that are not connected have no collectives


def test_a_damaged_calibration_that_is_named_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = {"name": "NVIDIA H200", "flops_per_s": {"bf16": "much"}, "copy_bytes_per_s": 1}
    damaged = {"schema": 1, "measured_ns": 1, "torch_version": "2.11.0", "device": device}
    (tmp_path / "damaged.json").write_text(json.dumps(damaged))
    run = str(ROOT / "sample_traces" / "h200_straggler")
    assert main(["ranks", run, "--calibration", str(tmp_path)]) == 2
    assert "holds a damaged calibration" in capsys.readouterr().err


def test_of_several_the_newest_holds_and_older_ones_fill_in() -> None:
    older = calibration(1, None, curve("all_reduce", 2, 40_000), curve("all_gather", 2, 20_000))
    newer = calibration(2, None, curve("all_reduce", 2, 30_000))
    found = curves_for(as_read(older, newer), FACTS, "nccl 2.28.9", {}) or []
    assert {one["kind"]: one["time_ns"] for one in found} == {"all_reduce": [30_000], "all_gather": [20_000]}


def test_only_settings_that_decide_the_speed_count() -> None:
    said = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO", "NCCL_VERSION": "2.27", "HOME": "/root"}
    assert network_settings(said) == {"NCCL_P2P_DISABLE": "1"}


def test_the_table_has_a_row_a_size_and_a_column_a_kind() -> None:
    said = render(calibration(1, SOCKETS, curve("all_reduce"), curve("all_gather")))
    assert "NCCL_P2P_DISABLE=1" in said
    assert [line.split()[:2] for line in said.splitlines() if "MiB" in line] == [["1.00", "MiB"], ["2.00", "MiB"]]
    assert "all-reduce" in said and "all-gather" in said


# Recordings that carry none


def test_a_recording_is_given_the_calibration_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(calibration(1, None, curve("all_reduce", 2, 30_000, 50_000, 60_000, 70_000, 80_000, 141_000)), tmp_path)
    sample = str(ROOT / "sample_traces" / "h200_straggler")
    assert main(["ranks", sample, "--calibration", str(path)]) == 0
    assert "of what diagnose calibrate measured" in capsys.readouterr().out
    assert main(["ranks", sample]) == 0
    assert "data sheet, NVLink" in capsys.readouterr().out
    assert main(["analyze", str(ROOT / "sample_traces" / "h200_expert_gpt"), "--calibration", str(tmp_path)]) == 0
    assert "of bf16 peak (700 TFLOP/s, measured)" in " ".join(capsys.readouterr().out.split())


def test_a_calibration_of_another_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(replace(calibration(), device=Device("NVIDIA A100")), tmp_path)
    sample = str(ROOT / "sample_traces" / "h200_straggler")
    assert main(["ranks", sample, "--calibration", str(path)]) == 2
    assert "is of NVIDIA A100, and the recording of NVIDIA H200" in capsys.readouterr().err
    assert main(["ranks", sample, "--calibration", str(tmp_path / "nowhere")]) == 2
    assert "holds no calibration" in capsys.readouterr().err


# The command itself, with torchrun and gloo


def diagnose(*words: str, into: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DIAGNOSE_CALIBRATIONS": str(into), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "diagnose", "calibrate", *words]
    return subprocess.run(
        command, env={**os.environ, **hidden, **settings}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_carries_the_bytes_that_its_time_is_told_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from diagnose.calibration import collectives

    given: list[Any] = []

    def take(*words: Any, **_: Any) -> list[Any]:
        given.extend(word for word in words if torch.is_tensor(word))
        return []  # no request to wait for

    for name in ("all_reduce", "all_to_all_single"):
        monkeypatch.setattr(torch.distributed, name, take)
    for name in ("_SCATTER", "_GATHER"):
        monkeypatch.setattr(collectives, name, take)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "P2POp", lambda _, tensor, *_rest: tensor)
    monkeypatch.setattr(torch.distributed, "batch_isend_irecv", lambda ways: take(*ways))
    collectives._work(kind, collectives.Group((0, 1), 1, None), torch.device("cpu"), 1 << 20)()
    assert max(tensor.nbytes for tensor in given) == 1 << 20


@pytest.mark.parametrize(("once_ms", "sizes"), [(5, [512, 1024]), (200, [512])])
def test_a_format_that_is_only_emulated_does_not_take_the_time_of_the_others(
    once_ms: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from diagnose.calibration import device

    measured: list[int] = []
    monkeypatch.setattr(device, "_products", lambda _: [("fp16", measured.append)])
    monkeypatch.setattr(device, "once_ns", lambda *_: once_ms * NS_PER_MS)
    monkeypatch.setattr(device, "block_times_ns", lambda *_: [once_ms * NS_PER_MS])
    rates = device._matrix_rates(torch.device("cpu"), 2 * NS_PER_S)
    assert measured == sizes
    assert rates == {"fp16": pytest.approx(2 * sizes[-1] ** 3 / (once_ms / 1000))}


def test_two_ranks_measure_every_kind_over_rising_sizes(tmp_path: Path) -> None:
    answer = diagnose("--ranks", "2", "--time", "1s", "--json", into=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (path,) = tmp_path.glob("*.json")
    found = decode(path)
    assert json.loads(answer.stdout)["measured_ns"] == found.measured_ns
    assert (found.world_size, found.nodes, found.library) == (2, 1, "gloo")
    assert {one.kind for one in found.curves} | {text.split()[0] for text in found.left_out} == set(KINDS)
    by_kind = {one.kind: one for one in found.curves}
    for one in by_kind.values():
        assert one.members == (0, 1) and one.rises and len(one.points) >= 5
        assert one.points[0].size_bytes == 4 << 10 and one.points[-1].size_bytes >= 4 << 20
        assert all(0 < point.low_ns <= point.time_ns <= point.high_ns for point in one.points)
    assert found.device.flops_per_s["fp32"] > 1e8 and found.device.copy_bytes_per_s > 1e7


@pytest.mark.parametrize(
    "request_", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGINT], ids=lambda one: one.name
)
def test_ranks_that_are_asked_to_end_do_not_go_on_measuring(tmp_path: Path, request_: signal.Signals) -> None:
    command = [sys.executable, "-m", "diagnose", "calibrate", "--ranks", "2", "--time", "600s", "-o", str(tmp_path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    # A shell that runs the tests in the background has them, and their children, ignore interrupts.
    hearing = partial(signal.signal, request_, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, preexec_fn=hearing, **streams) as calibrating:
        assert calibrating.stderr is not None
        said = list(itertools.takewhile(lambda line: "measuring" not in line, calibrating.stderr))
        assert calibrating.poll() is None, said
        started = psutil.Process(calibrating.pid).children(recursive=True)
        calibrating.send_signal(request_)
        assert len(started) >= 3, "the launcher and its ranks"
        _, alive = psutil.wait_procs(started, timeout=LIMIT_S)
        assert not alive
        assert calibrating.wait(LIMIT_S) != 0


def test_one_device_alone_says_nothing_of_collectives(tmp_path: Path) -> None:
    answer = diagnose("--ranks", "1", "--time", "1s", into=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (path,) = tmp_path.glob("*.json")
    assert decode(path).library is None and decode(path).curves == ()
    assert "products of fp32" in answer.stdout and "collectives" not in answer.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--group", "0,1"], "--group needs several ranks"),
        (["--group", "zero"], "names no two ranks"),
        (["--ranks", "2", "--group", "0,5"], "there are 2 ranks, 0 to 1"),
        (["--ranks", "2", "--like", str(ROOT / "sample_traces" / "h200_naive_gpt")], "names no group of ranks"),
        (["--ranks", "0"], "at least one rank"),
        (["--time", "soon"], "is not a duration"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("DIAGNOSE_CALIBRATIONS", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["calibrate", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_groups_of_a_larger_job_are_refused_before_any_rank_is_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded = next((ROOT / "sample_traces" / "h200_straggler").glob("*.json.gz"))
    larger = tmp_path / recorded.name
    text = gzip.decompress(recorded.read_bytes()).decode()
    larger.write_bytes(gzip.compress(text.replace('"[0, 1]"', '"[0, 6]"').encode()))
    assert main(["calibrate", "--ranks", "2", "--like", str(larger)]) == 2
    said = capfd.readouterr().err
    assert said == f"diagnose: --like {larger} names ranks 0,6: there are 2 ranks, 0 to 1\n"
