"""Ends a rank of a benchmark's job."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def leave() -> NoReturn:
    """End this process well, once all ranks are here and have written what they found.

    Models that talk to other ranks hold the process group to the last; gloo's threads then outlive
    `destroy_process_group`, and one that lets go of a tensor while the interpreter ends aborts the process
    (pytorch#179291).
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
