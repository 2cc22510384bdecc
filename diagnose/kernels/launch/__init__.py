"""How a kernel is launched.

candidates ──▶ tuning ──▶ tuning_clock (measures them once)
                  └─────▶ tuning_file (keeps what was measured)
"""
