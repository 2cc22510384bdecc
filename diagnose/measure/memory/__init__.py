"""What a device's memory holds: how much over time, who asked for it, what it serves as.

allocator events ──▶ history ──▶ usage ──▶ allocations ──▶ categories ◀── phases
                        │                      │               │
                        │                      └──▶ segment_layout ──▶ peak ◀── allocating_ops
                        └──▶ leaks
allocator calls within steps ──▶ allocator_calls
"""
