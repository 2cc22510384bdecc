"""What holds for all tests."""

from __future__ import annotations

import os

# A test reads what it says that it reads, and leaves nothing in the home of whoever runs it.
os.environ["DIAGNOSE_CACHE"] = "off"
