"""NVIDIA counters: NVML, and GPM where the device has it (Hopper and newer). Percent, watts, bytes, MiB/s.

NVML's `utilization` says whether any kernel ran; GPM says how much of the device it used. A metric that a device does
not offer is absent, never zero. `gpu.throttle_reasons` is NVML's mask of bits (`nvmlClocksEventReason…`).

Processes that NVML lists and that are none of ours are counted (`gpu.foreign_processes`), with their memory and their
share of the multiprocessors' time. In a container NVML may list numbers of another namespace: where it does not list
our own process, nothing is said of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

_GPM = {
    "gpu.sm_activity": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "gpu.sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "gpu.tensor_activity": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "gpu.dram_activity": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "gpu.pcie_sent_mib_s": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "gpu.pcie_received_mib_s": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "gpu.nvlink_received_mib_s": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
    "gpu.nvlink_sent_mib_s": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
}
_PLAIN: Mapping[str, Callable[[Any], float]] = {
    "gpu.utilization": lambda device: pynvml.nvmlDeviceGetUtilizationRates(device).gpu,
    "gpu.memory_used_bytes": lambda device: pynvml.nvmlDeviceGetMemoryInfo(device).used,
    "gpu.power_watts": lambda device: pynvml.nvmlDeviceGetPowerUsage(device) / 1000,
    "gpu.temperature_celsius": lambda device: pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
    "gpu.sm_clock_mhz": lambda device: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
    "gpu.max_sm_clock_mhz": lambda device: pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM),
    "gpu.power_limit_watts": lambda device: pynvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000,
    "gpu.default_power_limit_watts": lambda device: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(device) / 1000,
    "gpu.throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons,
}


def available() -> bool:
    """Whether there is a driver to ask; starts NVML."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


class Device:
    """One GPU, found by the UUID that its process reported."""

    def __init__(self, uuid: str, is_ours: Callable[[int], bool]) -> None:
        """`is_ours` says of a process number whether it belongs to the run."""
        self._is_ours = is_ours
        self._sampled_us = 0
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        self._readings = dict(_PLAIN)
        self._before: Any = None
        self._gpm = self._offers_gpm()

    def read(self) -> dict[str, float]:
        """The counters now; GPM's are means since the last call, so the first one lacks them."""
        values: dict[str, float] = {}
        for name, reading in list(self._readings.items()):
            try:
                values[name] = float(reading(self._handle))
            except pynvml.NVMLError:
                del self._readings[name]
        with contextlib.suppress(pynvml.NVMLError):
            values |= self._read_processes()
        if self._gpm:
            with contextlib.suppress(pynvml.NVMLError):
                values |= self._read_gpm()
        return values

    def _read_processes(self) -> dict[str, float]:
        running = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        foreign = {pid: used for pid, used in running.items() if not self._is_ours(pid)}
        if len(foreign) == len(running):
            return {}
        values = {"gpu.foreign_processes": float(len(foreign))}
        if all(used is not None for used in foreign.values()):
            values["gpu.foreign_memory_bytes"] = float(sum(foreign.values()))
        if foreign:
            with contextlib.suppress(pynvml.NVMLError):
                values["gpu.foreign_sm_percent"] = self._foreign_activity()
        return values

    def _foreign_activity(self) -> float:
        """Percent of the time since the last call in which kernels of others ran, at most 100."""
        samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._sampled_us)
        self._sampled_us = max((int(one.timeStamp) for one in samples), default=self._sampled_us)
        return min(100.0, float(sum(one.smUtil for one in samples if not self._is_ours(one.pid))))

    def _offers_gpm(self) -> bool:
        try:
            return bool(pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except (pynvml.NVMLError, AttributeError):
            return False

    def _read_gpm(self) -> dict[str, float]:
        sample = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(self._handle, sample)
        before, self._before = self._before, sample
        if before is None:
            return {}
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM)
        request.sample1, request.sample2 = before, sample
        for slot, number in enumerate(_GPM.values()):
            request.metrics[slot].metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        pynvml.nvmlGpmSampleFree(before)
        answers = zip(_GPM, request.metrics, strict=False)
        return {name: float(answer.value) for name, answer in answers if answer.nvmlReturn == pynvml.NVML_SUCCESS}
