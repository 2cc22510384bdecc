"""The repeated blocks of the model: what each keeps for the backward pass, and what computing it again takes.

modules ──▶ block_probe ◀── block_calls, saved_tensors, allocator_fragmentation
"""
