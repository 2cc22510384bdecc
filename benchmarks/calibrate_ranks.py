"""Runs `diagnose calibrate` on the devices of this host, with and without NVLink.

    python benchmarks/calibrate_ranks.py OUT [--ranks 2,4] [--seconds 90] [--tiny]

For each number of ranks it measures the network as it is and, as a slow one, loopback sockets
(`NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1`). The calibrations are written below OUT; the table, told again after each of
them, gives the bus bandwidth of the largest message, the latency of the smallest one, and the first device's own
ceilings. Then a data-parallel program is watched on as many ranks as the last ones, with and without NVLink, and its
collectives are compared with the curves. `--tiny` measures the processor for a few seconds, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rank_job import exit_code, leave_on_request  # noqa: E402

from diagnose.calibration.record import KINDS, Calibration, decode  # noqa: E402 - of this checkout
from diagnose.units import format_ns  # noqa: E402

NETWORKS: dict[str, dict[str, str]] = {
    "as it is": {},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
_START_UP_S = 12
LIMIT_S = 120
"""For a program that is watched, and beyond what a calibration shall take."""


def main() -> None:
    """Measure everything in turn and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", help="how many ranks, one number after the other (2,4; tiny: 2)")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    leave_on_request()
    counts = [int(one) for one in (options.ranks or ("2" if options.tiny else "2,4")).split(",")]
    networks = {"as it is": NETWORKS["as it is"]} if options.tiny else NETWORKS
    each_s = 3.0 if options.tiny else max(options.seconds / (len(counts) * len(networks)) - _START_UP_S, 5)
    rows = []
    for ranks in counts:
        for name, settings in networks.items():
            begin = time.monotonic()
            found = measure(options.out / f"{ranks} ranks, {name}", ranks, settings, each_s)
            print(f"{ranks} ranks, {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
            if found:
                rows.append((f"{ranks} ranks, {name}", found))
                print(table(rows), flush=True)
    if not rows:
        raise SystemExit("nothing could be measured: see above")
    for name, settings in networks.items():
        told = in_use(options.out, counts[-1], name, settings, options.tiny)
        print(f"\n{name}: a balanced program on {counts[-1]} ranks\n{told}", flush=True)


def in_use(out: Path, ranks: int, name: str, settings: Mapping[str, str], tiny: bool) -> str:
    """Return `diagnose ranks` of a program that was watched under the calibration of this number of ranks."""
    place = out / f"in use, {name}"
    place.mkdir(parents=True, exist_ok=True)
    program = [str(ROOT / "benchmarks" / "sickbay" / "straggler" / "healthy.py"), "--steps", "60"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    own = {"DIAGNOSE_CALIBRATIONS": str((out / f"{ranks} ranks, {name}").resolve()), **settings}
    command = ["run", "--plain", "--", *launcher, *program, *(["--tiny"] if tiny else [])]
    for words, log in ((command, "run.txt"), (["ranks"], "ranks.txt")):
        with (place / log).open("w") as told:
            _run(words, told, {**os.environ, **own}, LIMIT_S, cwd=place)
    return (place / "ranks.txt").read_text()


def measure(folder: Path, ranks: int, settings: Mapping[str, str], seconds: float) -> Calibration | None:
    """One calibration; None where the ranks ended with an error, which they have told, or not at all."""
    words = ["calibrate", "--ranks", str(ranks), "--time", f"{seconds:.0f}s", "-o", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.txt").open("w") as told:
        _run(words, told, {**os.environ, **settings}, 3 * seconds + LIMIT_S)
    written = sorted(folder.glob("*.json"), key=lambda one: one.stat().st_mtime)
    return decode(written[-1]) if written else None


def _run(words: list[str], told: TextIO, variables: dict[str, str], limit_s: float, cwd: Path | None = None) -> None:
    """`diagnose` with these words, ended with all its ranks where it takes too long."""
    command = [sys.executable, "-m", "diagnose", *words]
    if exit_code(command, limit_s, variables, cwd=cwd, stdout=told) is None:
        print(f"diagnose {words[0]}: ended after {limit_s:.0f} s", file=sys.stderr, flush=True)


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
