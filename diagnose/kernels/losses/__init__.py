"""Cross entropies of a large vocabulary.

linear_loss (of a layer's output, in chunks) ──▶ row_loss ◀── logit_loss (of logits)
      └──▶ gradient_reuse: the gradient that the forward pass left, handed on
"""
