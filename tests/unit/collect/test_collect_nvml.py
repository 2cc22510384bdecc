"""What is read of a GPU beside a run: clocks, limits and reasons, and who else uses it."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from diagnose.collect import nvml

OURS, OTHER = 41, 77


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device whose answers a test may change; what it is not given, it does not offer."""
    state = SimpleNamespace(running={OURS: 1000}, samples=[], asked=[])

    def refused(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def utilization(_: object, since: int) -> object:
        state.asked.append(since)
        return state.samples

    for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature"):
        monkeypatch.setattr(pynvml, name, refused)
    monkeypatch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", refused)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda *_: 1200)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxClockInfo", lambda *_: 1980)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 310_000)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetEnforcedPowerLimit", lambda _: 300_000)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerManagementDefaultLimit", lambda _: 700_000)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda _: [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in state.running.items()],
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", utilization)
    state.device = nvml.Device("uuid", lambda pid: pid == OURS)
    return state


def test_limits_and_the_highest_clock_are_read_and_the_rest_is_absent(gpu: SimpleNamespace) -> None:
    values = gpu.device.read()
    assert (values["gpu.sm_clock_mhz"], values["gpu.max_sm_clock_mhz"]) == (1200, 1980)
    assert (values["gpu.power_limit_watts"], values["gpu.default_power_limit_watts"]) == (300, 700)
    assert "gpu.utilization" not in values


def test_a_device_of_ours_alone_has_no_foreign_process(gpu: SimpleNamespace) -> None:
    values = gpu.device.read()
    assert values["gpu.foreign_processes"] == 0
    assert "gpu.foreign_sm_percent" not in values


def test_others_are_counted_with_their_memory_and_their_time(gpu: SimpleNamespace) -> None:
    gpu.running = {OURS: 1000, OTHER: 5000}
    gpu.samples = [
        SimpleNamespace(pid=OURS, smUtil=60, timeStamp=9),
        SimpleNamespace(pid=OTHER, smUtil=35, timeStamp=8),
    ]
    values = gpu.device.read()
    assert values["gpu.foreign_processes"] == 1
    assert values["gpu.foreign_memory_bytes"] == 5000
    assert values["gpu.foreign_sm_percent"] == 35
    gpu.device.read()
    assert gpu.asked == [0, 9]


def test_numbers_of_another_namespace_say_nothing_of_others(gpu: SimpleNamespace) -> None:
    gpu.running = {OTHER: 5000}
    assert not any("foreign" in name for name in gpu.device.read())
