"""Device work by what it computes, and where kernels cost more than they need to.

launch_order ──▶ matmuls ──▶ misaligned_matmuls
            ├──▶ eager_attention, pointwise_chains, loss_work       patterns of operators
roofline's kernel_bounds ──▶ memory_chains (one pass for many), wide_formats (16 bits for 32)
op_tree ────────▶ layout_conversions, recomputation, compiled_regions
kernel lengths ─▶ sharing/ (time of other processes), growing_work
device_work: the view of a rank that has them all
"""
