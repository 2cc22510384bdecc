"""Which lines of source time belongs to.

sampled stacks, Python calls ──▶ line_attribution ──▶ op_lines
one step's line log ─────────────────────────▶ line_trace ──┐
framework_python, host_ops ──────────────────────────────────┴──▶ host_side       what the host did, and where
new_shapes (first calls of a shape), compute_parts (compute by bound, module and line)
"""
