"""The collectives of one rank: what they move, what they cost, how DDP and FSDP issue them.

collectives ──▶ communication_waste ◀── links, calibration_curves       beyond what the bytes need
     ├──▶ late_gradients, redundant_collectives, faster_collectives ◀── overheads
     └──▶ gradient_buckets ──▶ gradient_sizes ──▶ bucket_plan ──▶ bucket_evidence
fsdp_modules ──▶ fsdp_resharding;  ddp_unused_parameters
"""
