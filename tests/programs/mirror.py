"""Prints what a program can see of its own start, and ends with exit code 3."""

import json
import os
import signal
import sys

seen = {
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "cwd": os.getcwd(),
    "path": sys.path,
    "pythonpath_is_set": "PYTHONPATH" in os.environ,
    "stdin": sys.stdin.read(),
    "isatty": [sys.stdin.isatty(), sys.stdout.isatty()],
    "group": os.getpgrp() == os.getpgid(os.getppid()),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
    "diagnose": [name for name in sys.modules if name.split(".")[0] == "diagnose"],
    "torch": "torch" in sys.modules,
}
json.dump(seen, sys.stdout)
sys.exit(3)
