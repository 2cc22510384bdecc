"""How near the device's ceilings the work came.

operands of an operator ──▶ matmul_costs, attention_costs, memory_costs ──▶ op_costs ──┬──▶ roofline
calibrations ──▶ ceilings ─────────────────────────────────────────────────────────────┤
list_costs, op_costs ──▶ kernel_work ──┬──▶ kernel_bounds ◀────────────────────────────┘
kernel_counters ───────────────────────┘
kernel grids ──▶ occupancy;  shapes ──▶ saved_bytes
"""
