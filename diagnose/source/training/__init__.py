"""The parts of a training step in the source: its loop, model, loss, and what runs in every step.

aliases, flow ──▶ model_calls ──▶ training_loop ──▶ forward_region, every_step, device_type
                                      │
                                      └──▶ model_construction ──▶ construction_end, model_uses, model_methods
                                                 └──▶ compilation, lightning, image_models, model_loss ◀── loss_function
block_calls ◀── checkpoint_policy       blocks of the model, and which results to keep
"""
