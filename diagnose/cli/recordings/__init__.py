"""Commands that read what was recorded: they start nothing.

a path or a run's name ──▶ target ──▶ analyze, report, view, compare, scaling ──▶ findings (text, JSON, exit code)
files of many ranks ──────────────▶ ranks, gather
"""
