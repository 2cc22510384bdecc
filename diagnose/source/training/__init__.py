"""A training step in the source: its loop, loss and forward pass, and what runs in every step.

aliases, flow ──▶ model_calls ──▶ training_loop ──▶ forward_region, every_step, device_type, loss_function
block_calls                             blocks of the model, and how to compute them again
"""
