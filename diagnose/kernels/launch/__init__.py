"""Launches of kernels: block sizes, tuning and its file.

candidates ──▶ tuning ──▶ tuning_clock (measures them once)
                  └─────▶ tuning_file (keeps what was measured)
"""
