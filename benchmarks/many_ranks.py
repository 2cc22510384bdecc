"""Measures the cost of a job of many ranks: to reduce one rank, carry its digest, and diagnose all digests.

    python benchmarks/many_ranks.py FOLDER_OF_RANKS --megabytes 100 --repeats 5

Every rank's trace is repeated to the size that is asked for. Each reduction runs in a fresh process, one at a time;
its processor time is told, because that is what a worker pays whoever else is on the machine. More ranks than there
are recordings are made by giving digests other rank numbers.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.analysis.rank_digest import Digest
    from diagnose.plugins import Catalogue

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

RANKS = (8, 64, 256, 1024)


@dataclass(frozen=True)
class Cost:
    """The cost of one rank's reduction."""

    read_s: float
    digest_s: float
    peak_bytes: int
    digest: Digest

    @property
    def cpu_s(self) -> float:
        """Processor time of both."""
        return self.read_s + self.digest_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="torch.profiler traces, one a rank")
    parser.add_argument("--megabytes", type=float, default=100, help="of each rank's trace, uncompressed")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ["DIAGNOSE_CACHE"] = "off"
    with TemporaryDirectory() as work:
        paths = [enlarged(path, Path(work), options.megabytes) for path in sorted(options.folder.glob("*.json*"))]
        size = median(path.stat().st_size for path in paths)
        costs = [cost for _ in range(options.repeats) for cost in in_fresh_processes(paths)]
    digests = [cost.digest for cost in costs[: len(paths)]]
    travels = [len(pickle.dumps(digest)) for digest in digests]
    print(f"{len(paths)} ranks of {size / 1e6:.0f} MB, {options.repeats} times, in seconds of processor time:")
    print(f"  read {median(cost.read_s for cost in costs):.2f}, measure and digest ", end="")
    print(f"{median(cost.digest_s for cost in costs):.2f}, together {spread([cost.cpu_s for cost in costs])}")
    print(f"  peak memory {max(cost.peak_bytes for cost in costs) / 1e6:.0f} MB")
    print(f"  digest {min(travels)} to {max(travels)} bytes, the trace's size divided by {size / median(travels):.0f}")
    for ranks in RANKS:
        taken = [merged_s(digests, ranks) for _ in range(options.repeats)]
        print(f"  {ranks} digests: diagnosis {spread([one for one, _ in taken])}, ", end="")
        print(f"collectives compared {spread([two for _, two in taken])}")


def spread(values: list[float]) -> str:
    """The median, and between what."""
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def enlarged(path: Path, folder: Path, megabytes: float) -> Path:
    """Repeat a trace."""
    from make_trace import Template, plain_bytes

    template = Template.of(plain_bytes(path))
    out = folder / f"{path.name.removesuffix('.gz')}"
    template.write(out, max(1, round(megabytes * 1e6 / template.size_bytes)))
    return out


def in_fresh_processes(paths: list[Path]) -> list[Cost]:
    """One after another."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return list(pool.map(cost_of, paths))


def cost_of(path: Path) -> Cost:
    """Reduce one file, as a worker does."""
    from diagnose.analysis.rank_digest import digest_of
    from diagnose.plugins import load_rules
    from diagnose.trace.readers import open_part

    catalogue = load_rules()
    begin = time.process_time()
    (trace,) = open_part((path,))
    read = time.process_time()
    digest = digest_of(trace, catalogue)
    end = time.process_time()
    return Cost(read - begin, end - read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, digest)


def merged_s(digests: list[Digest], ranks: int) -> tuple[float, float]:
    """Processor time from bytes to the diagnosis of a job of so many ranks, and of comparing their collectives."""
    from diagnose.engine import diagnose_digests
    from diagnose.measure.job.ranks import job_of_records
    from diagnose.plugins import load_rules

    catalogue: Catalogue = load_rules()
    travelled = [pickle.dumps(numbered(digests[rank % len(digests)], rank, ranks)) for rank in range(ranks)]
    begin = time.process_time()
    arrived = [pickle.loads(one) for one in travelled]
    diagnosis = diagnose_digests(arrived, catalogue)
    middle = time.process_time()
    job = job_of_records([one.record for one in arrived])
    end = time.process_time()
    assert diagnosis.ranks == len(job.table) == ranks
    return middle - begin, end - middle


def numbered(digest: Digest, rank: int, world_size: int) -> Digest:
    """Return a digest as another rank's."""
    record = replace(digest.record, rank=rank, world_size=world_size)
    return replace(digest, rank=rank, world_size=world_size, record=record)


if __name__ == "__main__":
    main()
