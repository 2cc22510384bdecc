"""The profiler window of a watched process: when it opens, the steps in it, and its trace.

tracing (once, in steady steps), requested_window (on demand) ──▶ counted_window ──▶ profiler_window
       │
       └──▶ steadiness, trace_agreement
"""
