"""Numerics gates: does the patched program still compute what the original computes?

capture_plan ──▶ capture_runner ──▶ captures ──▶ numerics ◀── step_state, adam_sensitivity
                   │      └─ capture_pause          │
                   └──▶ trajectory ─────────────────┴──▶ gate
"""
