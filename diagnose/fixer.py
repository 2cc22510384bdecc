"""All that a file in `fixers/` needs to import.

A fixer is a pure function from the user's source texts and one finding to edited texts. It writes nothing and runs
nothing. The file's docstring is its documentation, under the headings *What it changes*, *Why it helps*,
*Fix safety*; it ends in `FIXER = Fixer(...)` with a source before, the same after, and sources it must leave alone.
Shared tests run them all.
"""

from __future__ import annotations

from diagnose.fixing import Advice, Answer, Edits, Example, Fixer, Request, example_request, lines_with
from diagnose.measure.comm.bucket_evidence import planned
from diagnose.measure.comm.fsdp_resharding import to_keep
from diagnose.memory import (
    Line,
    Plan,
    Recorded,
    plans,
    read_plan,
    recorded,
    relaxed,
    split_plans,
    state_shares,
    written_plan,
)
from diagnose.model import Facts, Finding, Gate, Scalar, Site
from diagnose.program.environment import before_imports, variables
from diagnose.source.batches.accumulation import Accumulation, Count, accumulation, count_of
from diagnose.source.batches.changing_samples import changing_samples
from diagnose.source.batches.dataset_rng import Draw
from diagnose.source.batches.loaders import Loader, LoadersFound, find_loaders
from diagnose.source.batches.micro_batch import MicroBatch, microbatch
from diagnose.source.batches.micro_step_methods import called_micro_step
from diagnose.source.batches.micro_steps import LastMicroStep, last_micro_step
from diagnose.source.dataflow.bindings import binding_of, bound_to
from diagnose.source.dataflow.exception_handlers import who_catches
from diagnose.source.dataflow.flow import (
    STEADY_UPDATES,
    Loop,
    Uses,
    asks_nothing,
    binds,
    chosen_by,
    gate,
    is_after,
    is_append,
    loops_around,
    scope_of,
    updates,
    uses_of,
    within,
)
from diagnose.source.dataflow.graph_uses import shows_graph
from diagnose.source.dataflow.loop_invariants import is_unchanging, on_device
from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.purity import only_computes
from diagnose.source.dataflow.reaching_definitions import Bound, reaching, statement_of
from diagnose.source.derivatives import second_derivative
from diagnose.source.device.batch_classes import OwnMove, own_moves
from diagnose.source.device.cuda_switches import also_without_cuda
from diagnose.source.device.deferral import Deferred, LeftAlone
from diagnose.source.device.deferred_reads import filled_by, keep_on_device, put_off, read_at_once
from diagnose.source.device.deferred_writes import puts_off
from diagnose.source.device.device_reads import is_read, log_branch, tensor_of, training_reads, trains, trains_within
from diagnose.source.device.host_overwrites import is_overwritten
from diagnose.source.device.progress_bars import does_more, on_progress_bar, show_less_often, shown_at
from diagnose.source.device.transfer_size import is_constant, is_small, is_variable, is_whole_batch
from diagnose.source.device.transfers import Origin, Transfer, cuda_test, made_on_host, transfers
from diagnose.source.device.truth_values import is_truth
from diagnose.source.device.value_kinds import number_kind
from diagnose.source.distributed.data_parallel import (
    DataParallel,
    carried_by_gloo,
    data_parallel,
    hooked_gradients,
    wrapper_of,
)
from diagnose.source.distributed.dynamic_parameters import varies
from diagnose.source.distributed.fsdp import Sharded, sharded
from diagnose.source.distributed.parameter_loops import ParameterLoop, parameter_loops
from diagnose.source.losses.loss_forms import has_losses, losses
from diagnose.source.losses.loss_of_output import LossOfStep, losses_of_steps
from diagnose.source.losses.nll_loss import WrittenLikelihood, written_likelihoods
from diagnose.source.losses.output_layer import OutputProduct
from diagnose.source.losses.output_loss import OutputLoss, output_losses
from diagnose.source.losses.unused_outputs import reader_of
from diagnose.source.optimizers.average_dictionaries import KeptAverage, kept_averages
from diagnose.source.optimizers.gradient_coverage import idle_gradients
from diagnose.source.optimizers.gradient_norms import NormLoop, clipped_by_hand, norm_loops
from diagnose.source.optimizers.moving_averages import MovingAverage, moving_averages
from diagnose.source.optimizers.optimizer_formula import known_optimizer
from diagnose.source.optimizers.own_optimizer import replaced_by_torchs
from diagnose.source.patterns.activations import WrittenActivation, written_activations
from diagnose.source.patterns.add_norm import NormCall, ResidualNorm, residual_norms
from diagnose.source.patterns.attention import Refused, WrittenAttention, mentions_fused, written_attentions
from diagnose.source.patterns.attention_call import CannotFuse, fused_call
from diagnose.source.patterns.class_probabilities import are_probabilities
from diagnose.source.patterns.conv_norms import biased_before_norm
from diagnose.source.patterns.cross_entropy import CrossEntropy, classes_last
from diagnose.source.patterns.gated_units import GatedUnit, gated_units
from diagnose.source.patterns.norms import WrittenNorm, written_norms
from diagnose.source.patterns.rotary import RotatedPair, rotated_pairs
from diagnose.source.patterns.vocabulary import OutputLayer, output_layers
from diagnose.source.rewrite.adapted_layers import adaptation
from diagnose.source.rewrite.context_removal import unwrap
from diagnose.source.rewrite.functional import functional, operand
from diagnose.source.rewrite.hooks import forward_hook, is_watching_hook, module_hook
from diagnose.source.rewrite.leftovers import unread_after, without_from_import, without_import
from diagnose.source.rewrite.numpy_to_torch import Translated, copied, leaf, translated_use
from diagnose.source.rewrite.removal import remove_call, remove_statements, take_out
from diagnose.source.rewrite.replacement import call_in_place, comments_above, in_place, laid_out
from diagnose.source.rewrite.shim import add_to_shim, import_for_effect, import_from_shim, is_shim
from diagnose.source.rewrite.with_blocks import block_of, wrapped
from diagnose.source.settings.options import CallOptions, Placed
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.switches import Switches, Turn
from diagnose.source.settings.trainers import Trainer
from diagnose.source.settings.values import number, setting_of
from diagnose.source.training.block_calls import (
    BlockCall,
    Keeping,
    block_call_at,
    block_calls,
    checkpointed,
    condition,
    within_context,
)
from diagnose.source.training.compilation import (
    Compiled,
    ModelClass,
    compilations,
    is_compiled,
    is_handed_to_compile,
    model_class,
)
from diagnose.source.training.construction_end import after_build
from diagnose.source.training.device_type import device_type
from diagnose.source.training.every_step import EveryStep, Stretch, batch_loops, counter_of, is_occasional
from diagnose.source.training.forward_region import ForwardRegion, forward_region
from diagnose.source.training.image_models import (
    convolves_first,
    layout_use,
    moved_inputs,
    uses_convolutions,
    views_of_images,
)
from diagnose.source.training.lightning import lightning_models, logged_reads
from diagnose.source.training.model_construction import Built, built_model
from diagnose.source.training.model_loss import computes_loss
from diagnose.source.training.model_methods import called_methods
from diagnose.source.training.model_uses import asked_elsewhere, asks_rank, needs_model, uses_of_model
from diagnose.source.training.pending_files import may_notice
from diagnose.source.training.repeated_forward import forward_effect, repeated_effect
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.training.wrapped_uses import use_of_wrapper
from diagnose.source.tree.arguments import argument, argument_code, has_star, remove_argument, set_keywords
from diagnose.source.tree.edits import (
    Source,
    Splice,
    call_at,
    call_name,
    ensure_from_import,
    ensure_import,
    free_name,
    insert_above,
    insert_after,
    insert_before,
    parse,
    replace,
    splice,
    top_of_program,
)
from diagnose.source.tree.syntax import only_statement
from diagnose.source.tree.text_lines import lines_in

__all__ = [
    "STEADY_UPDATES",
    "Accumulation",
    "Advice",
    "Answer",
    "BlockCall",
    "Bound",
    "Built",
    "CallOptions",
    "CannotFuse",
    "Compiled",
    "Count",
    "CrossEntropy",
    "DataParallel",
    "Deferred",
    "Draw",
    "Edits",
    "EveryStep",
    "Example",
    "Facts",
    "Finding",
    "Fixer",
    "ForwardRegion",
    "Gate",
    "GatedUnit",
    "Keeping",
    "KeptAverage",
    "LastMicroStep",
    "LeftAlone",
    "Line",
    "Loader",
    "LoadersFound",
    "Loop",
    "LossOfStep",
    "MicroBatch",
    "ModelClass",
    "MovingAverage",
    "NormCall",
    "NormLoop",
    "Origin",
    "OutputLayer",
    "OutputLoss",
    "OutputProduct",
    "OwnMove",
    "ParameterLoop",
    "Placed",
    "Plan",
    "Recorded",
    "Refused",
    "Request",
    "ResidualNorm",
    "RotatedPair",
    "Scalar",
    "Setting",
    "Sharded",
    "Site",
    "Source",
    "Splice",
    "Stretch",
    "Switches",
    "Trainer",
    "TrainingStep",
    "Transfer",
    "Translated",
    "Turn",
    "Uses",
    "WrittenActivation",
    "WrittenAttention",
    "WrittenLikelihood",
    "WrittenNorm",
    "accumulation",
    "adaptation",
    "add_to_shim",
    "after_build",
    "also_without_cuda",
    "are_probabilities",
    "argument",
    "argument_code",
    "asked_elsewhere",
    "asks_nothing",
    "asks_rank",
    "batch_loops",
    "before_imports",
    "biased_before_norm",
    "binding_of",
    "binds",
    "block_call_at",
    "block_calls",
    "block_of",
    "bound_to",
    "built_model",
    "call_at",
    "call_in_place",
    "call_name",
    "called_methods",
    "called_micro_step",
    "carried_by_gloo",
    "changing_samples",
    "checkpointed",
    "chosen_by",
    "classes_last",
    "clipped_by_hand",
    "comments_above",
    "compilations",
    "computes_loss",
    "condition",
    "convolves_first",
    "copied",
    "count_of",
    "counter_of",
    "cuda_test",
    "data_parallel",
    "device_type",
    "does_more",
    "ensure_from_import",
    "ensure_import",
    "example_request",
    "filled_by",
    "find_loaders",
    "forward_effect",
    "forward_hook",
    "forward_region",
    "free_name",
    "functional",
    "fused_call",
    "gate",
    "gated_units",
    "has_losses",
    "has_star",
    "hooked_gradients",
    "idle_gradients",
    "import_for_effect",
    "import_from_shim",
    "in_place",
    "insert_above",
    "insert_after",
    "insert_before",
    "is_after",
    "is_append",
    "is_compiled",
    "is_constant",
    "is_handed_to_compile",
    "is_occasional",
    "is_overwritten",
    "is_read",
    "is_shim",
    "is_small",
    "is_truth",
    "is_unchanging",
    "is_variable",
    "is_watching_hook",
    "is_whole_batch",
    "is_written",
    "keep_on_device",
    "kept_averages",
    "known_optimizer",
    "laid_out",
    "last_micro_step",
    "layout_use",
    "leaf",
    "lightning_models",
    "lines_in",
    "lines_with",
    "log_branch",
    "logged_reads",
    "loops_around",
    "losses",
    "losses_of_steps",
    "made_on_host",
    "may_notice",
    "mentions_fused",
    "microbatch",
    "model_class",
    "module_hook",
    "moved_inputs",
    "moving_averages",
    "needs_model",
    "norm_loops",
    "number",
    "number_kind",
    "on_device",
    "on_progress_bar",
    "only_computes",
    "only_statement",
    "operand",
    "output_layers",
    "output_losses",
    "own_moves",
    "parameter_loops",
    "parse",
    "planned",
    "plans",
    "put_off",
    "puts_off",
    "reaching",
    "read_at_once",
    "read_plan",
    "reader_of",
    "recorded",
    "relaxed",
    "remove_argument",
    "remove_call",
    "remove_statements",
    "repeated_effect",
    "replace",
    "replaced_by_torchs",
    "residual_norms",
    "rotated_pairs",
    "scope_of",
    "second_derivative",
    "set_keywords",
    "setting_of",
    "sharded",
    "show_less_often",
    "shown_at",
    "shows_graph",
    "splice",
    "split_plans",
    "state_shares",
    "statement_of",
    "take_out",
    "tensor_of",
    "to_keep",
    "top_of_program",
    "training_reads",
    "training_steps",
    "trains",
    "trains_within",
    "transfers",
    "translated_use",
    "unread_after",
    "unwrap",
    "updates",
    "use_of_wrapper",
    "uses_convolutions",
    "uses_of",
    "uses_of_model",
    "variables",
    "varies",
    "views_of_images",
    "who_catches",
    "within",
    "within_context",
    "without_from_import",
    "without_import",
    "wrapped",
    "wrapper_of",
    "written_activations",
    "written_attentions",
    "written_likelihoods",
    "written_norms",
    "written_plan",
]
