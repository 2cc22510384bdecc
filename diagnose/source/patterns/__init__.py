"""Operators that a source writes out: attention, norms, activations, gated units, cross entropy.

tree, dataflow ──▶ formula, numeric       what an expression of tensors computes, however it is written
                     ├──▶ activations ──▶ gated_units
                     ├──▶ norms, add_norm, conv_norms
                     ├──▶ einsum ──▶ attention ──▶ attention_call ◀── causal_masks
                     ├──▶ rotary, vocabulary
                     └──▶ cross_entropy ◀── class_probabilities
"""
