"""The options of all these programs; a limit on the memory of the process that imports this, and what it took."""

import argparse
import ctypes
import resource

import torch

GIB = 1 << 30
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8


def options(steps: int = 30) -> argparse.ArgumentParser:
    """The command line: under which limit, for how many steps, in which size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=0.0, help="GiB")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    return parser


def limit_memory(gibibytes: float) -> None:
    """Let this process take no more of the device; without one, so much of the host beside what it has; 0: no limit."""
    if torch.cuda.is_available():
        if gibibytes:
            torch.cuda.set_per_process_memory_fraction(
                gibibytes * GIB / torch.cuda.get_device_properties(0).total_memory
            )
        return
    torch.set_num_threads(1)
    allocator = ctypes.CDLL(None)
    allocator.mallopt(M_MMAP_THRESHOLD, 1 << 20)  # what is freed is given back
    allocator.mallopt(M_ARENA_MAX, 1)
    if gibibytes:
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + int(gibibytes * GIB), resource.RLIM_INFINITY))


def peak_bytes() -> int:
    """The most that tensors held on the device; without one, the most that the process held."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
