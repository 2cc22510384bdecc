"""Waits for a signal and says which."""

import signal
import sys
import time
from types import FrameType


def told(number: int, _frame: FrameType | None) -> None:
    print(f"got {signal.Signals(number).name}", flush=True)
    sys.exit(5)


signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
time.sleep(60)
