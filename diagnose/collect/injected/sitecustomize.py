"""Python runs this at start-up where this folder is first on PYTHONPATH: it lets a watched program begin.

It imports next to nothing, leaves `sys.path` and `sys.modules["sitecustomize"]` as they would be without it, and never
raises. PYTHONPATH itself stays, so that the processes that the program starts are met as well.
"""

import os
import sys


def _leave_path() -> str:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would cost 5 ms of start-up
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    sys.path_importer_cache.pop(here, None)
    return os.path.dirname(here)  # noqa: PTH120


def _boot(collect: str) -> None:
    # A package of a private name: `diagnose` need not be importable here, and a module `diagnose` of the program's
    # own must not be hidden.
    package = type(sys)("_diagnose_collect")
    package.__path__ = [collect]
    sys.modules[package.__name__] = package
    __import__("_diagnose_collect.inside")
    sys.modules["_diagnose_collect.inside"].boot()


def _next_sitecustomize() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


_collect = _leave_path()
try:  # noqa: SIM105 - contextlib would cost more than all of this
    _boot(_collect)
except Exception:  # noqa: BLE001 - a program must start whatever is wrong with its watcher
    pass
_next_sitecustomize()
