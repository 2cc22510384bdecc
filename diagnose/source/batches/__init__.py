"""Where batches come from and how they are split: loaders, datasets, micro-batches.

dataset_rng, changing_samples, loader_lifetime ──▶ loaders ──┐
accumulation ──▶ micro_steps ◀── micro_step_methods           ├──▶ micro_batch
rng_in_step ──────────────────────────────────────────────────┘
"""
