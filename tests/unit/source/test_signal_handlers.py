"""Workers begin as copies of the program, which would handle its signals too."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

TOP = """import signal, sys, threading
STOP = threading.Event()
def on_signal(number, frame):
    {does}
class Stopper:
    def stop(self, number, frame):
        {method}
        self.stopped = True
old = signal.getsignal(signal.SIGINT)
signal.signal({sets})
"""


def handled(sets: str, does: str = "pass", method: str = "pass") -> str:
    return program(top=TOP.format(sets=sets, does=does, method=method))


@pytest.mark.parametrize(
    "text",
    [
        handled("signal.SIGINT, on_signal", "torch.save(STATE, 'last.pt')\n    sys.exit(1)"),
        handled("signal.SIGINT, on_signal", "print('stopping')"),
        handled("signal.SIGINT, on_signal", "raise Stopped(number)"),
        handled("signal.SIGUSR1, Stopper().stop", method="log.info('asked to stop')"),
        handled("handler=lambda *_: print('stopping'), signalnum=signal.SIGINT"),
        handled("signal.SIGINT, handlers[0]"),
    ],
    ids=["saves", "prints", "raises an error of its own", "a method", "a lambda", "not known"],
)
def test_a_handler_that_acts_would_do_so_in_each_worker(text: str) -> None:
    refused("loader-workers", text, "signal.signal(")


@pytest.mark.parametrize(
    "text",
    [
        handled("signal.SIGINT, on_signal", "global LAST\n    LAST = number\n    STOP.set()"),
        handled("signal.SIGINT, on_signal", "signal.signal(number, signal.SIG_DFL)\n    raise KeyboardInterrupt"),
        handled("signal.SIGINT, Stopper().stop"),
        handled("signal.SIGTERM, on_signal", "torch.save(STATE, 'last.pt')\n    sys.exit(1)"),
        handled("signal.SIGINT, signal.SIG_IGN"),
        handled("signal.SIGINT, old"),
    ],
    ids=["notes it", "ends the process", "a method", "workers have their own", "ignored", "the former one"],
)
def test_a_handler_that_notes_a_signal_may_do_so_in_each_worker(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)
