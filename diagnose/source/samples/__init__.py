"""What makes the samples of a loader, what that does, and what it shares with the program around it.

sample_code ──▶ object_identity ──▶ temporary_objects, given_attributes ──▶ sample_effects ──▶ sharing
dataset_rng         random numbers that samples draw
device_samples      samples that lie on a device already
changing_samples    whether a line changes a dataset
"""
