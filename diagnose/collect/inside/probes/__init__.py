"""What is measured while the program trains; each probe writes lines of one file.

step ends ──▶ memory, ranges, compilation, graph_leaks, rng_use
time ──▶ stack_sampler;  one traced step ──▶ line_log, syncs, allocations
modules ──▶ blocks
torch.compile ──▶ compiler_log
"""
