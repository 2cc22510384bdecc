"""Operators that a source writes out: attention, norms, activations, cross entropy.

tree, dataflow ──▶ formula, numeric       what an expression of tensors computes, however it is written
                     ├──▶ activations
                     ├──▶ norms
                     ├──▶ einsum ──▶ attention ──▶ attention_call ◀── causal_masks
                     ├──▶ vocabulary
                     └──▶ cross_entropy ◀── class_probabilities
"""
