"""How near the device's ceilings the work came.

operands of an operator ──▶ matmul_costs, attention_costs, memory_costs ──▶ op_costs ──┐
calibrations ──▶ ceilings ─────────────────────────────────────────────────────────────┴──▶ roofline
kernel grids ──▶ occupancy;  shapes ──▶ saved_bytes
"""
