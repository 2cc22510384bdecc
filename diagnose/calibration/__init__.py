"""Measures what a machine does at most, and keeps it: `diagnose calibrate`.

`job` runs on every rank and puts together what `device` and `collectives` measure; `record` is what comes of it;
`store` keeps it where watched programs find it (`diagnose.collect.calibrations`).
"""
