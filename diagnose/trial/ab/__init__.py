"""The A/B trial: two arms run blocks of steps in turn until their difference is known.

arm_protocol ──▶ ab_trial ──▶ result ──▶ decision (one package up)
                   ▲  ▲  └─ side_failure       one arm failed
    sequential ────┘  └──── periodic_steps       when to stop, how long a block is
aa_control       the original against itself: the smallest difference the machine can resolve
knob_search ──▶ knob_trials ──▶ reused_arm       settings of one fix against each other
startup_cost       what a fix adds before the first step
"""
