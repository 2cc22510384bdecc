"""The memory of a device: how much over time, which lines asked for it, and its categories.

allocator events ──▶ history ──▶ usage ──▶ allocations ──▶ categories ◀── phases
                        │                      │               │
                        │                      └──▶ segment_layout ──▶ peak ◀── allocating_ops
                        └──▶ leaks
allocator calls within steps ──▶ allocator_calls
"""
