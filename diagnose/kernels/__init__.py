"""Fused kernels for training as torch operators: less memory moved, less memory held.

They need torch, and use Triton where it can reach the device; elsewhere the same operators run in plain torch, in
chunks where that saves memory. `backend()` says which one runs. Each works forward and backward, in eager code and
under `torch.compile`, writes into none of its inputs, and keeps its sums in float32.

gated_unit, masked_softmax, residual_norm, residual_layer_norm, rotary, losses/
    ──▶ direct (eager), fallbacks (left to torch), layout ──▶ backend ──▶ gpu/ (Triton) ◀── launch/ (which launch)
fp8_linear: the products of large linear layers, by torch's own scaled product
host_memory/: what lies in the host's memory between its uses
"""

from diagnose.kernels.backend import backend
from diagnose.kernels.fp8_linear import multiply_in_fp8
from diagnose.kernels.gated_unit import geglu, swiglu
from diagnose.kernels.host_memory.activation_offload import offload
from diagnose.kernels.host_memory.optimizer_offload import offload_state
from diagnose.kernels.losses.linear_loss import linear_cross_entropy
from diagnose.kernels.losses.logit_loss import cross_entropy
from diagnose.kernels.masked_softmax import softmax
from diagnose.kernels.residual_layer_norm import add_layer_norm
from diagnose.kernels.residual_norm import add_rms_norm
from diagnose.kernels.rotary import rotary

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "backend",
    "cross_entropy",
    "geglu",
    "linear_cross_entropy",
    "multiply_in_fp8",
    "offload",
    "offload_state",
    "rotary",
    "softmax",
    "swiglu",
]
