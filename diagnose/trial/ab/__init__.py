"""The A/B trial: two arms run blocks of steps in turn until their difference is known.

trial_state ──▶ ab_trial ──▶ result ──▶ decision (one package up)
  ▲   ▲   ▲        └─ what follows what: `trial_state.Stage`
  │   │   └─ live_arms ◀── arm_protocol       the processes of one trial
  │   └───── periodic_steps       how long a block is
  └───────── sequential       when to stop
aa_control       the original against itself: the smallest difference the machine can resolve
knob_search ──▶ knob_trials ──▶ reused_arm       settings of one fix against each other
startup_cost       what a fix adds before the first step
"""
