"""How DistributedDataParallel reduces gradients: its buckets, and what it searches for.

gradient_buckets ──▶ gradient_sizes ──▶ bucket_plan ──▶ bucket_evidence ──▶ fixers
unused_parameters: the search for them
rank_gradients: the view of a rank that has them, and gradients reduced after the backward pass
"""
