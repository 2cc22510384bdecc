"""Probes: each takes one thing out of the training step, so that a trial shows what that thing costs.

    one file a probe      MEASURES, BOUNDS, SETTINGS      what its answer says of findings
                          start(change)                   what it changes, in the process of one arm

`diagnose probe --list` shows the docstrings. A file is found by loading: nothing is registered anywhere. It imports
torch and what lies in this package only, as it runs in the program's own process. Unlike all else here, a probe changes
what the program computes: the process that it runs in is a copy, whose results nobody keeps.

MEASURES   rules of which the probe takes away the whole cause: what it saves is what the finding says it costs
BOUNDS     rules of which it takes away more than the cause: no fix saves more than the probe
SETTINGS   what is tried one after the other, each a dictionary; without, the probe has no settings
COMPILES   True where a start of it waits for a compiler
"""
