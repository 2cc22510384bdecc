"""What makes the samples of a loader, and what that shares with the program around it.

sample_code ──▶ object_identity ──▶ sample_effects, shared_objects ──▶ open_handles, hidden_changes, main_process ──┐
given_attributes, batch_aliases, dataset_rng, statement_order, process_memory ──────────────────▶ shared_state ◀──┘
changing_samples    whether a line changes a dataset
"""
