"""Values that cross between host and device, and how to move or read them later.

every_step ──▶ transfers ──▶ transfer_size, host_overwrites, batch_classes
device_reads ──▶ deferred_writes ──▶ deferred_reads;  progress_bars
cuda_switches       options that a program turns on for CUDA alone
"""
