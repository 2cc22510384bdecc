"""Imported before torch, this makes a little program a third shorter: the garbage collector does not walk over torch,
neither while it is imported nor when Python ends."""

import atexit
import gc

gc.disable()

import torch  # noqa: E402, F401

gc.enable()
gc.freeze()
atexit.register(gc.freeze)
