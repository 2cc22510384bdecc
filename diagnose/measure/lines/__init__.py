"""Which lines of source time belongs to.

sampled stacks, Python calls ──▶ line_attribution ──▶ op_lines, collective_lines
one step's line log ──▶ sequence_alignment ──▶ line_trace ──┐
framework_python, host_ops, device_reads ────────────────────┴──▶ host_side       what the host did, and where
"""
