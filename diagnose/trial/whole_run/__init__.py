"""Whether a patched program still does, from start to end, what a user sees the original do.

    gate ──► runs ──► observation ──► comparison ◄── figures, saved_objects
                                          ▲
                                     file_history

`gate` decides which runs are needed, `runs` makes a fresh copy for each (shortened where the program is long) and lets
it run under `diagnose.collect.inside.modes.whole_run`, `observation` reads what the run left behind, and `comparison`
holds two programs' observations against each other: `figures` for text and the numbers in it, `saved_objects` for
tensors and other saved values, `file_history` for the order in which files come and go. `data_order` compares what
loaders yield.
"""
