"""Optimizers and gradients of a program: what its text says of them, and clipping that it writes out by hand.

gradient_norms                               clipping, parameter by parameter
optimizer_values, sparse_gradients           what an optimizer is given
gradient_coverage, late_gradients            which parameters get gradients, and in which steps
loss_choices                                 losses that are made of other parts in some steps
"""
