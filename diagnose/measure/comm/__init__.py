"""The collectives of one rank: what they move, what they cost, how DDP and FSDP issue them.

collectives ──▶ communication_waste ◀── links, calibration_curves       beyond what the bytes need
     ├──▶ redundant_collectives, faster_collectives ◀── overheads
     └──▶ ddp/                                          buckets of gradients
fsdp_modules ──▶ fsdp_resharding
rank_collectives: the view of a rank that has them;  collective_lines: which lines issue them
"""
