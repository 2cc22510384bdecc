"""What the samples of a loader share with the program around it, which worker processes would not see.

shared_objects ──▶ statement_order, open_handles, main_process, batch_aliases ──┐
process_memory, rewritten_files, hidden_changes ────────────────────────────────┴──▶ shared_state
"""
