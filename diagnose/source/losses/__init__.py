"""Losses over the output layer: how they are written, and whether the logits can be left out.

patterns.cross_entropy ──▶ nll_loss ──▶ loss_forms ──┐
last_axis ──▶ output_layer ───────────────────────────┴──▶ output_loss, loss_of_output
unused_outputs       whether anybody reads one of the things that a function returns
"""
