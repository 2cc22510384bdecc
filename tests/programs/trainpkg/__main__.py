"""Run with `-m trainpkg`: says how it was started."""

import json
import sys

from . import answer

json.dump(
    {"argv": sys.argv[1:], "name": __name__, "package": __package__, "answer": answer, "path": sys.path}, sys.stdout
)
