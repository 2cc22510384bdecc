"""The data to explore after the verdict: kernels and operators as tables, and some steps as a timeline.

kernel_rows ─────────────────────┐
sampled_calls, counter_series ───┤
step_lanes ──────────────────────┴──▶ step_profile       one rank's `StepProfile`
work_sources: the operator, the module and the line that device work or an operator belongs to
"""
