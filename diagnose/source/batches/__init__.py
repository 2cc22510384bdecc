"""Where batches come from and how they are split: loaders and micro-batches.

loader_lifetime, first_batch ──▶ loader ──▶ loaders ──┐
accumulation ──▶ micro_steps ◀── micro_step_methods    ├──▶ micro_batch
rng_in_step ──────────────────────────────────────────┘
"""
