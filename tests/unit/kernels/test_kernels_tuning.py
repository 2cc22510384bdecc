"""How launches are chosen: what is measured, what is kept, and where nothing may be."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diagnose import kernels
from diagnose.kernels.launch import tuning, tuning_clock, tuning_file
from diagnose.kernels.launch.tuning import Config, bucket, choose, fused_pays
from diagnose.kernels.launch.tuning_file import Choice, Key

A, B, C = Config(block=1024, threads=128), Config(block=2048, threads=256), Config(block=4096, threads=512)
CANDIDATES = (A, B, C)
ON_DEVICE = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, and a process that knows nothing yet."""
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path))
    monkeypatch.delenv(tuning.SWITCH, raising=False)
    tuning.forget()
    yield tmp_path / tuning_file.NAME
    tuning.forget()


class Device:
    """Stands for a device: each launch takes the time that is written down for its configuration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times_ns: dict[Config, float]) -> None:
        self.times_ns = times_ns
        self.measured = 0
        self.launched: list[Config] = []
        self.capturing = False
        monkeypatch.setattr(tuning, "device_times_ns", self._times)
        monkeypatch.setattr(tuning, "_device_name", lambda _: "a device (1.0)")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        # The kind of the tensor is what is asked; there is none of it here.
        monkeypatch.setattr(tuning, "_counts", lambda _: self.allows())

    def allows(self) -> bool:
        return not torch.are_deterministic_algorithms_enabled() and tuning._switch() != "off"

    def choose(self, *shape: int) -> Config:
        return choose("a kernel", shape, torch.empty(1), CANDIDATES, self.launched.append)

    def _times(self, launches: list[object]) -> list[float]:
        self.measured += 1
        for launch in launches:
            assert callable(launch)
            launch()
        return [self.times_ns[config] for config in self.launched[-len(launches) :]]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch, {A: 100.0, B: 80.0, C: 120.0})


def test_the_fastest_is_measured_once_and_kept(device: Device, fresh: Path) -> None:
    assert device.choose(8, 64) == B
    assert device.choose(8, 64) == B and device.measured == 1
    tuning.forget()  # another process
    assert device.choose(8, 64) == B and device.measured == 1
    ((key, choice),) = tuning_file.read(fresh).items()
    assert (key.kernel, key.shape, key.dtype, key.device) == ("a kernel", (8, 64), "float32", "a device (1.0)")
    assert f"torch {torch.__version__}" in key.versions
    assert choice == Choice(B, 80, 100)


def test_each_shape_is_one_of_its_own(device: Device) -> None:
    device.choose(8, 64)
    device.choose(8, 128)
    assert device.measured == 2


def test_the_default_stays_unless_another_is_worth_it(device: Device) -> None:
    device.times_ns[B] = 98.0
    assert device.choose(8, 64) == A


def test_what_does_not_fit_the_device_is_not_chosen(device: Device, fresh: Path) -> None:
    device.times_ns |= {A: float("inf"), B: float("inf")}
    assert device.choose(8, 64) == C
    device.times_ns[C] = float("inf")
    assert device.choose(9, 64) == A, "its launch says what is wrong"
    assert [choice.config for choice in tuning_file.read(fresh).values()] == [C]


def test_where_nothing_may_be_measured_the_default_or_what_is_stored_is_taken(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.capturing = True
    assert device.choose(8, 64) == A and device.measured == 0
    device.capturing = False
    assert device.choose(8, 64) == B, "a capture settles nothing"
    tuning.forget()
    device.capturing = True
    assert device.choose(8, 64) == B, "what is stored counts there"
    monkeypatch.setenv(tuning.SWITCH, "stored")
    assert device.choose(8, 65) == A and device.measured == 1
    monkeypatch.setenv(tuning.SWITCH, "off")
    assert device.choose(8, 64) == A
    monkeypatch.setenv(tuning.SWITCH, "of")
    with pytest.raises(ValueError, match="only `on`, `stored` and `off`"):
        device.choose(8, 64)


def test_deterministic_runs_take_the_default_on_every_machine(device: Device) -> None:
    assert device.choose(8, 64) == B
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert device.choose(8, 64) == A
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert device.choose(8, 64) == B


def test_a_stored_choice_that_is_no_candidate_counts_for_nothing(device: Device, fresh: Path) -> None:
    assert device.choose(8, 64) == B
    (key,) = tuning_file.read(fresh)
    tuning_file.write(fresh, {key: Choice(Config(block=7, threads=9999), 1, 1)})
    tuning.forget()
    assert device.choose(8, 64) == B and device.measured == 2


def test_a_file_that_cannot_be_read_is_put_aside_and_said(device: Device, fresh: Path) -> None:
    fresh.write_text('{"schema": 1, "entries": [{"kernel"')
    with pytest.warns(UserWarning, match=r"not JSON.*kernels\.unreadable-1\.json"):
        assert device.choose(8, 64) == B
    assert fresh.with_name("kernels.unreadable-1.json").read_text() == '{"schema": 1, "entries": [{"kernel"'
    assert [choice.config for choice in tuning_file.read(fresh).values()] == [B]


def test_a_folder_that_cannot_be_written_costs_the_next_process_its_choice(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path / "a file"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert device.choose(8, 64) == B
    assert any("for this process alone" in str(warning.message) for warning in said)
    assert device.choose(8, 64) == B and device.measured == 1
    monkeypatch.setenv("DIAGNOSE_CACHE", "off")
    assert device.choose(8, 65) == B


def test_sizes_that_vary_fall_into_few_buckets() -> None:
    assert [bucket(size) for size in (0, 1, 2, 3, 1000, 1024, 1025)] == [1, 1, 2, 4, 1024, 1024, 2048]


def test_on_the_cpu_there_is_nothing_to_choose() -> None:
    def launch(_: Config) -> None:
        raise AssertionError("nothing is launched")

    assert choose("a kernel", (8,), torch.empty(8), CANDIDATES, launch) == A
    assert fused_pays("a kernel", [torch.empty(8, 8), None], launch, launch)


def test_one_key_for_one_choice() -> None:
    keys = {
        Key("k", (1, 2), "bfloat16", "d", "v"),
        Key("k", (1, 3), "bfloat16", "d", "v"),
        Key("k", (1, 2), "float32", "d", "v"),
        Key("k", (1, 2), "bfloat16", "e", "v"),
        Key("k", (1, 2), "bfloat16", "d", "w"),
    }
    assert len(keys) == 5


def test_what_is_tried_is_not_seen_by_the_hooks_of_the_thread_that_asks() -> None:
    """Under checkpointing, tensors that a trial saves would be counted as the program's."""
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    def measure() -> list[float]:
        value = torch.ones(2, requires_grad=True)
        torch.autograd.grad((value * value).sum(), value)
        return [1.0, 2.0]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert tuning_clock.run_in_thread(measure, torch.device("cpu")) == [1.0, 2.0]
    assert saved == []


def test_ranks_that_measure_side_by_side_agree_on_what_the_first_wrote_down(
    monkeypatch: pytest.MonkeyPatch, fresh: Path
) -> None:
    """Their times differ by noise; weights that all have a copy of must not drift apart by it."""

    def measured_beside_another(launches: list[object]) -> list[float]:
        if len(launches) == 3:
            tuning_file.write(fresh, {tuning._key(place): Choice(C, 7, 9)})
        return [100.0, 80.0, 90.0]

    place = ("a kernel", (8, 64), torch.float32, torch.device("cpu"))
    device = Device(monkeypatch, {})
    monkeypatch.setattr(tuning, "device_times_ns", measured_beside_another)
    assert device.choose(8, 64) == C
    assert device.choose(8, 64) == C
    assert list(tuning_file.read(fresh).values()) == [Choice(C, 7, 9)]


def test_a_good_file_that_another_process_wrote_meanwhile_is_not_put_aside(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, choice = Key("k", (1, 2), "bfloat16", "d", "v"), Choice(A, 1, 1)
    fresh.write_text("half of a fi")
    read = tuning_file.read

    def read_late(path: Path) -> tuning_file.Choices:
        try:
            return read(path)
        finally:
            tuning_file.write(path, {key: choice})  # by another process, after this one has looked

    monkeypatch.setattr(tuning_file, "read", read_late)
    assert tuning_file.read_or_put_aside(fresh) == {key: choice}
    assert [path.name for path in fresh.parent.glob("*unreadable*")] == []


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_what_is_written_can_be_read_by_whom_the_user_lets_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        tuning_file.write(tmp_path / "shared.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "shared.json").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["shared.json"]


def test_a_backward_pass_is_known_as_one() -> None:
    """There nothing is tried that has a backward pass itself: it would wait for the thread that waits for it."""
    seen: list[bool] = []
    value = torch.ones(2, requires_grad=True)
    product = value * 2
    product.register_hook(lambda _: seen.append(tuning._in_backward()))  # type: ignore[no-untyped-call]  # torch's
    torch.autograd.backward(product.sum())
    assert seen == [True] and not tuning._in_backward()


def test_a_trial_that_fails_is_said_and_ends_nothing() -> None:
    def measure() -> list[float]:
        raise torch.OutOfMemoryError("no room")

    with pytest.warns(UserWarning, match="OutOfMemoryError"):
        assert tuning_clock.run_in_thread(measure, torch.device("cpu")) is None


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_code_does_not_ask(dynamic: bool) -> None:
    gate, up = torch.randn(4, 6), torch.randn(4, 6)
    compiled = torch.compile(kernels.swiglu, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert torch.allclose(compiled(gate, up), torch.nn.functional.silu(gate) * up)
    x, weight = torch.randn(4, 6), torch.ones(6)
    compiled_norm = torch.compile(kernels.add_rms_norm, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert torch.allclose(compiled_norm(x, x, weight)[1], x + x)


class OfADevice:
    """What is asked of a tensor that lies on one."""

    dtype, device = torch.bfloat16, torch.device("cuda", 0)

    def __init__(self, *shape: int, requires_grad: bool = True) -> None:
        self.shape, self.requires_grad = torch.Size(shape), requires_grad

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return 2


@pytest.mark.usefixtures("device")
def test_whether_fusing_pays_is_settled_for_what_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By shape, gradients and the other inputs; and it counts for nothing where measured choices may not."""
    tried: list[str] = []
    times = {"fused": [(2.0, 2.0), (1.0, 1.0)], "torch's own": [(1.0, 1.0), (2.0, 2.0)]}

    def measured(*_: object) -> list[tuple[float, float]]:
        tried.append("a trial")
        return times["fused" if len(tried) == 1 else "torch's own"]

    def pays(*inputs: OfADevice | None) -> bool:
        return fused_pays("a kernel", inputs, measured, measured)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "run_in_thread", measured)
    wide, other = OfADevice(8, 64), OfADevice(8, 64)
    assert pays(wide, other) and pays(wide, other) and pays(OfADevice(8, 64), OfADevice(8, 64))
    assert len(tried) == 1
    assert not pays(OfADevice(8, 128), OfADevice(8, 128)) and not pays(OfADevice(8, 128), OfADevice(8, 128))
    assert len(tried) == 2, "another width"
    pays(OfADevice(8, 64, requires_grad=False), OfADevice(8, 64, requires_grad=False))
    with torch.no_grad():
        pays(wide, other)
    assert len(tried) == 3, "the forward pass alone"
    assert pays(wide, other) and len(tried) == 3
    torch.use_deterministic_algorithms(True)
    try:
        assert not pays(wide, other), "small inputs take torch's own where nothing measured counts"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("device")
def test_shapes_that_never_come_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "run_in_thread", lambda *_: [(2.0, 2.0), (1.0, 1.0)])
    monkeypatch.setattr(tuning, "MOST_SETTLED", 3)
    for rows in range(1, 20):
        assert fused_pays("a kernel", [OfADevice(rows, 64)], print, print)  # type: ignore[list-item]
    assert len(tuning._settled) <= 3


@pytest.mark.skipif(not ON_DEVICE, reason="needs a device")
class TestOnADevice:
    def test_kernels_are_tuned_and_the_choice_is_used_again(self, fresh: Path) -> None:
        gate = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        up = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        state = torch.cuda.get_rng_state()
        torch.autograd.backward(kernels.swiglu(gate, up).sum())
        assert torch.equal(state, torch.cuda.get_rng_state()), "the program's random numbers are its own"
        known = tuning_file.read(fresh)
        assert {key.kernel for key in known} == {"swiglu", "swiglu backward", "swiglu or torch's own"}
        assert all(choice.time_ns > 0 for choice in known.values())
        tuning.forget()
        before = fresh.stat().st_mtime_ns
        torch.autograd.backward(kernels.swiglu(gate, up).sum())
        assert fresh.stat().st_mtime_ns == before

    def test_a_captured_graph_is_not_measured(self, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate, up = (torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        monkeypatch.setenv(tuning.SWITCH, "off")
        kernels.swiglu(gate, up)  # compiles
        torch.cuda.synchronize()
        monkeypatch.setenv(tuning.SWITCH, "on")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = kernels.swiglu(gate, up)
        graph.replay()
        assert torch.allclose(out, torch.nn.functional.silu(gate) * up, rtol=2e-2, atol=2e-2)
        assert not fresh.exists()

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointed_blocks_are_tuned_like_others(self, reentrant: bool) -> None:
        """Reentrant checkpointing first wants gradients in the backward pass, where nothing may be tried."""
        from torch.utils.checkpoint import checkpoint

        x, residual = (torch.randn(64, 512, device="cuda", requires_grad=True) for _ in range(2))
        weight = torch.ones(512, device="cuda", requires_grad=True)
        normed, summed = checkpoint(kernels.add_rms_norm, x, residual, weight, use_reentrant=reentrant)
        torch.autograd.backward((normed + summed).sum())
        assert x.grad is not None and bool(x.grad.isfinite().all())
