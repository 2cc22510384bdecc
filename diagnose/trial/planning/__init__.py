"""How long the next trial takes, and what can start before its turn.

cost_model ──▶ estimates ──▶ prelaunch
                  └──▶ numerics_check       the numbers of a patched program, with the time that they took
"""
