"""The probes that measure while the program trains. Each writes lines of one file.

step ends ──▶ memory, ranges, compilation, graph_leaks, rng_use
time ──▶ stack_sampler;  one traced step ──▶ line_log, syncs, allocations
modules ──▶ blocks
torch.compile ──▶ compiler_log
"""
