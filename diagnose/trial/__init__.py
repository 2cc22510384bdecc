"""Trials: a fix against the original, on copies of the user's program.

bench ──▶ trial_runner ──▶ planning       what runs when
     ├──▶ ab       arms in turn, until their difference is known ──┐
     ├──▶ gates    does it still compute the same? ────────────────┼──▶ decision ──▶ verdict
     ├──▶ standalone, baseline_failure, mechanism ─────────────────┘
     └──▶ process       all of these run in processes of `process`
schedule, watched_program   how long turns, starts and profiler windows take
interruption                ends what computes for too long
"""
