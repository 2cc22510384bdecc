"""Lets a child that the program forks leave, once a profiler has been on in its parent.

Kineto keeps a thread for good. A forked child does not have that thread, and Kineto's destructor, which runs when the
child exits, waits for it for ever. So the child ends right before destructors would run: after Python's own exit, and
after the buffers of C are written. Processes that `multiprocessing` forks have always ended like this.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_prepared: list[bool] = []


def let_children_leave() -> None:
    """Prepare for forks from now on. Raises AttributeError where the C library has no `on_exit`: glibc has."""
    if _prepared:
        return
    libc = ctypes.CDLL(None)
    on_exit, at_exit = libc.on_exit, libc.__cxa_atexit
    on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    at_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    end, flush = _address(libc._exit), _address(libc.fflush)

    def forked() -> None:
        # The last one registered runs first: fflush(NULL), then _exit(status).
        on_exit(end, None)
        at_exit(flush, None, None)

    os.register_at_fork(after_in_child=forked)
    _prepared.append(True)


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
