"""What `diagnose calibrate` finds on the devices of this host, with and without NVLink.

    python benchmarks/calibrate_ranks.py OUT [--ranks 2,4] [--seconds 90] [--tiny]

For each number of ranks it measures the network as it is and, as a slow one, loopback sockets
(`NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1`). The calibrations are written below OUT; the table gives the bus bandwidth of
the largest message, the latency of the smallest one, and the first device's own ceilings. Then a data-parallel program
is watched on two ranks, with and without NVLink, and its collectives are compared with the curves. `--tiny` measures
two ranks on the processor for a few seconds, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diagnose.calibration.record import KINDS, Calibration, decode  # noqa: E402 - of this checkout
from diagnose.units import format_ns  # noqa: E402

NETWORKS: dict[str, dict[str, str]] = {
    "as it is": {},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
_START_UP_S = 12


def main() -> None:
    """Measure everything in turn and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", default="2,4", help="how many ranks, one number after the other")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    counts = [2] if options.tiny else [int(one) for one in options.ranks.split(",")]
    networks = {"as it is": NETWORKS["as it is"]} if options.tiny else NETWORKS
    each_s = 3.0 if options.tiny else max(options.seconds / (len(counts) * len(networks)) - _START_UP_S, 5)
    rows = []
    for ranks in counts:
        for name, settings in networks.items():
            begin = time.monotonic()
            found = measure(options.out / f"{ranks} ranks, {name}", ranks, settings, each_s)
            print(f"{ranks} ranks, {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
            rows += [(f"{ranks} ranks, {name}", found)] if found else []
    if not rows:
        raise SystemExit("nothing could be measured: see above")
    print(table(rows))
    for name, settings in networks.items():
        print(f"\n{name}: a balanced program on two ranks\n{in_use(options.out, name, settings, options.tiny)}")


def in_use(out: Path, name: str, settings: Mapping[str, str], tiny: bool) -> str:
    """What `diagnose ranks` says of a program that was watched where the calibration holds."""
    place = out / f"in use, {name}"
    place.mkdir(parents=True, exist_ok=True)
    program = [str(ROOT / "benchmarks" / "sickbay" / "straggler" / "healthy.py"), "--steps", "60"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    own = {"DIAGNOSE_CALIBRATIONS": str((out / f"2 ranks, {name}").resolve()), **settings}
    command = ["run", "--plain", "--", *launcher, *program, *(["--tiny"] if tiny else [])]
    for words, log in ((command, "run.txt"), (["ranks"], "ranks.txt")):
        with (place / log).open("w") as told:
            subprocess.run(
                [sys.executable, "-m", "diagnose", *words],
                cwd=place,
                env={**os.environ, **own, "PYTHONPATH": _path()},
                stdout=told,
                stderr=subprocess.STDOUT,
                timeout=180,
                check=False,
            )
    return (place / "ranks.txt").read_text()


def measure(folder: Path, ranks: int, settings: Mapping[str, str], seconds: float) -> Calibration | None:
    """One calibration; None where the ranks ended with an error, which they have told."""
    command = [sys.executable, "-m", "diagnose", "calibrate", "--ranks", str(ranks), "--time", f"{seconds:.0f}s"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.txt").open("w") as told:
        subprocess.run(
            [*command, "-o", str(folder)],
            env={**os.environ, **settings, "PYTHONPATH": _path()},
            stdout=told,
            timeout=8 * seconds + 120,
            check=False,
        )
    written = sorted(folder.glob("*.json"), key=lambda one: one.stat().st_mtime)
    return decode(written[-1]) if written else None


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def table(rows: list[tuple[str, Calibration]]) -> str:
    """One row a calibration: of all its ranks, bus bandwidth in GB/s and, in brackets, the smallest message's time."""
    device = rows[0][1].device
    rates = ", ".join(f"{form} {rate / 1e12:.3g}" for form, rate in device.flops_per_s.items())
    lines = [
        f"{device.name or 'processor'}: TFLOP/s {rates}",
        f"memory {device.copy_bytes_per_s / 1e9:.0f} GB/s, launch {format_ns(device.launch_ns)}, "
        f"round trip {format_ns(device.round_trip_ns)}",
        f"{'':<20}" + "".join(f"{kind:>22}" for kind in KINDS),
    ]
    for name, found in rows:
        curves = {curve.kind: curve for curve in found.curves if curve.ranks == found.world_size}
        cells = ""
        for kind in KINDS:
            curve = curves.get(kind)
            cell = "–"
            if curve is not None:
                rate = curve.bus_bytes_per_s(curve.points[-1]) / 1e9
                cell = f"{rate:.1f} ({format_ns(curve.points[0].time_ns)})"
            cells += f"{cell:>22}"
        lines.append(f"{name:<20}{cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
