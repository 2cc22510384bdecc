"""Activations and optimizer state held in the host's memory, copied beside the compute.

activation_offload (the saved tensors of a block) ──▶ host_lane ◀── optimizer_offload ◀── prefetch_budget
                                           copies on a stream of their own      how much may come back early
"""
