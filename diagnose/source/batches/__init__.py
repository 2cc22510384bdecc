"""Where batches come from and how they are split: loaders and micro-batches.

loader_lifetime, first_batch ──▶ loader ──▶ loaders ──────┐
accumulation ──▶ micro_steps ◀── micro_step_methods        ├──▶ micro_batch
batch_counts, micro_step_effects, rng_in_step ────────────┘
shared_workers      the other loaders that another number of workers reaches
"""
