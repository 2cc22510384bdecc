"""Fixes for a program that runs out of memory as found.

oom_rescue (the first fix with which it runs) ──▶ oom_rescue_bundle (several, none of which is enough)
     └──────────────────▶ oom_survival ◀───────────────────┘      runs a stack until it ends
"""
