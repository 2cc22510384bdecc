"""`python -m diagnose` is the `diagnose` command."""

import sys

from diagnose.cli import main

if __name__ == "__main__":
    sys.exit(main())
