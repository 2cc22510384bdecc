"""Time in which the device worked for another process.

gaps with work waiting ──▶ time_slices            the whole device was given away
lengths of kernels ──────▶ preempted_kernels      a kernel was interrupted
"""
