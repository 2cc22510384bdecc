"""What Python programs and notebooks call: `diagnose` offers these names as its own (`diagnose.analyze`, …).

analysis     recordings, diagnosed, and how the answer prints
loop_watch   a loop of the same process, recorded
notebook     the same for a cell of IPython or Jupyter
"""
