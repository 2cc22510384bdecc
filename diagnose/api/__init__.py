"""The Python API for programs and notebooks. `diagnose` re-exports these names (`diagnose.analyze`, …).

analysis     recordings, diagnosed, and how the answer prints
loop_watch   a loop of the same process, recorded
notebook     the same for a cell of IPython or Jupyter
"""
