"""`diagnose.watch` as a callback of a trainer. Each module needs the library that it is named for."""
