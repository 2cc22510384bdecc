"""Deliberately wrong edits, each of the kind that a fixer with a fault would make: what a gate has to refuse.

A mutation is a program of the suite and an edited text of it. The edit replaces code that stands once in the program,
so that each mutation reads as the mistake that it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adversarial.families import suite
from adversarial.program import Program
from diagnose.fixer import Gate

BITWISE, ROUNDING = Gate.BITWISE, Gate.ROUNDING


@dataclass(frozen=True)
class Mutation:
    """A wrong edit."""

    name: str
    """What is wrong with it."""
    program: Program
    edited: str
    fixer: str
    """The fixer that makes edits of this kind."""
    gate: Gate
    """What that fixer promises."""


_KINDS: tuple[tuple[str, str, str, Gate, str, str], ...] = (
    # name, program, fixer, gate, what stands there, what the wrong edit puts there
    ("history misses its last value", "log_script_history_of_items", "defer-item", BITWISE, 'print("history", len(history)', 'history = history[:-1]\nprint("history", len(history)'),
    ("history in the wrong order", "log_script_history_of_items", "defer-item", BITWISE, 'print("history", len(history)', 'history = history[::-1]\nprint("history", len(history)'),
    ("view of a weight for a copy", "log_script_weight_recorded", "defer-item", BITWISE, "[0][0, 0].item())", "[0].detach()[0, 0])"),
    ("view of a gradient for a copy", "log_function_gradient_recorded", "defer-item", BITWISE, ".grad[0, 0].item())", ".grad[0, 0])\n        optimizer.param_groups[0]['params'][0].grad.add_(0.0).mul_(0.5)"),
    ("whole numbers for a float sum", "log_script_two_sums", "defer-item", BITWISE, "margin += (top[:, 0] - top[:, 1]).mean().item()", "margin += int((top[:, 0] - top[:, 1]).mean())"),
    ("count of one class for the count", "log_script_two_sums", "defer-item", BITWISE, "correct += (logits.argmax(1) == y).sum().item()", "correct += (logits.argmax(1) == y).any().item()"),
    ("sum kept over epochs", "log_script_two_sums", "defer-item", BITWISE, "    correct = 0\n    margin = 0.0\n", "    correct, margin = (correct, margin) if epoch else (0, 0.0)\n"),
    ("last value of an earlier step", "log_script_last_value", "defer-item", BITWISE, "        last = loss.item()", "        last = loss.item() if step < 5 else last"),
    ("average without its last step", "log_function_smoothed", "defer-item", BITWISE, "smooth = 0.98 * smooth + 0.02 * loss.item()", "smooth = 0.98 * smooth + 0.02 * loss.item() if seen < 6 else smooth"),
    ("highest value of the last step only", "log_script_worst_value", "defer-item", BITWISE, "worst = max(worst, loss.item())", "worst = loss.item()"),
    ("records without the last", "log_script_history_dumped", "defer-item", BITWISE, "json.dump(history, f)", "json.dump(history[:-1], f)"),
    ("single precision in a record", "log_script_history_dumped", "defer-item", BITWISE, '"loss": loss.item()', '"loss": float(loss.half())'),
    ("history lost on the way out", "loop_finally_writes", "defer-item", BITWISE, "finally:\n    with", "except ValueError:\n    raise\nelse:\n    with"),
    ("history written empty after Ctrl-C", "loop_interrupt_saves", "defer-item", BITWISE, "except KeyboardInterrupt:\n", "except KeyboardInterrupt:\n    history.clear()\n"),
    ("message of an exception dropped", "loop_item_in_message", "defer-item", BITWISE, "raise RuntimeError(f'at {step}: {history[-1]:.5f}')", "raise RuntimeError"),
    ("decision a step late", "loop_early_stop", "defer-item", BITWISE, "        value = loss.item()", "        value, late = (late, loss.item()) if step else (loss.item(), loss.item())"),
    ("epoch end dropped", "log_script_formatted_postfix", "defer-item", BITWISE, "    print(epoch, line)", "    if epoch < 2:\n        print(epoch, line)"),
    ("workers on a length that is set", "data_function_length_set", "loader-workers", BITWISE, "shuffle=True)", "shuffle=True, num_workers=2)"),
    ("workers on notes", "data_function_noted", "loader-workers", BITWISE, "shuffle=True)", "shuffle=True, num_workers=2)"),
    ("workers on an open zip file", "data_function_zip_handle", "loader-workers", BITWISE, "shuffle=True)", "shuffle=True, num_workers=4)"),
    ("workers on one generator", "data_function_generator", "loader-workers", BITWISE, "shuffle=True)", "shuffle=True, num_workers=2)"),
    ("order not shuffled", "data_function_plain", "loader-workers", BITWISE, "shuffle=True)", "num_workers=1)"),
    ("last partial batch dropped", "log_script_loss_interval_reset", "loader-workers", BITWISE, "batch_size=16, shuffle=True)", "batch_size=16, shuffle=True, drop_last=True)"),
    ("workers that live on past set_epoch", "data_function_set_epoch", "persistent-workers", BITWISE, "shuffle=True)", "shuffle=True, num_workers=1, persistent_workers=True)"),
    ("checkpoint skipped", "save_script_numbered", "async-checkpoint", BITWISE, "if step % 4 == 3:", "if step % 8 == 3:"),
    ("checkpoint written late", "save_script_listed", "async-checkpoint", BITWISE, "        torch.save(model.state_dict(), f\"out/{step:03d}.pt\")\n        print(sorted(os.listdir(\"out\")))", "        print(sorted(os.listdir(\"out\")))\n        torch.save(model.state_dict(), f\"out/{step:03d}.pt\")"),
    ("checkpoint of a later step", "save_script_copy_kept", "async-checkpoint", BITWISE, "copy.deepcopy(model.state_dict())", "model.state_dict()"),
    ("checkpoint lost at a hard exit", "save_script_saved_then_exits", "async-checkpoint", BITWISE, 'print("budget spent")', 'os.remove("out/last.pt")\n        print("budget spent")'),
    ("error of a write swallowed", "save_script_save_may_fail", "async-checkpoint", BITWISE, 'print("cannot save", type(error).__name__)', "pass"),
    ("assertion dropped", "loop_assert_caught", "drop-debug", BITWISE, "        assert torch.isfinite(loss), f'bad at step {step}'\n", ""),
    ("hook that raises dropped", "loop_hook_raises", "drop-debug", BITWISE, "model.a.register_forward_hook(watch)\n", ""),
    ("gradients of an idle head gone", "step_adamw_kept_idle_head", "zero-grad-none", BITWISE, "set_to_none=False", "set_to_none=True"),
    ("gradients kept from the step before", "step_momentum_by_model_both_heads", "zero-grad-none", BITWISE, "model.zero_grad(set_to_none=False)", "model.body.zero_grad(set_to_none=True)"),
    ("last partial accumulation missing", "loop_accumulate_tail", "bigger-microbatch", ROUNDING, " or step == steps - 1", ""),
    ("sum of micro steps for their mean", "loop_accumulate", "bigger-microbatch", ROUNDING, "F.mse_loss(model(x), y) / 4", "F.mse_loss(model(x), y)"),
    ("betas of the optimizer left out", "step_amsgrad_kept_both_heads", "fused-optimizer", ROUNDING, "betas=(0.8, 0.95), ", ""),
    ("eps of the optimizer left out", "step_amsgrad_kept_both_heads", "fused-optimizer", ROUNDING, "eps=1e-4, ", ""),
    ("weight decay left out", "step_momentum_by_model_both_heads", "fused-optimizer", ROUNDING, ", weight_decay=0.05", ""),
    ("norm clipped a parameter at a time", "loop_clip_by_hand", "foreach-clip", ROUNDING, "norm += p.grad.norm().item() ** 2", "norm = max(norm, p.grad.norm().item() ** 2)"),
    ("eps inside for outside", "norm_rms_outside_wide", "native-norm", ROUNDING, "(x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)", "(x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()"),
    ("eps of the library's default", "norm_layer_wide", "native-norm", ROUNDING, "eps=1e-2", "eps=1e-5"),
    ("biased for unbiased variance", "norm_unbiased_small", "native-norm", ROUNDING, "x.var(-1, keepdim=True)", "x.var(-1, keepdim=True, unbiased=False)"),
    ("weight without its one", "norm_rms_plus_one_small", "native-norm", ROUNDING, "(1 + self.weight)", "self.weight"),
    ("mask swapped", "attention_finite_sqrt_float", "use-sdpa", ROUNDING, "~keep[", "keep["),
    ("mask one step off", "attention_strict_sqrt_float", "use-sdpa", ROUNDING, "diagonal=2", "diagonal=1"),
    ("scale of the heads for that of the width", "attention_open_width_queries", "use-sdpa", ROUNDING, "/ math.sqrt(C)", "/ math.sqrt(self.d)"),
    ("halves of the gated unit swapped", "unit_swiglu", "native-gelu", ROUNDING, "F.silu(a) * b", "F.silu(b) * a"),
    ("gradient through a detached gate", "unit_detached_gate", "native-gelu", ROUNDING, "a.detach() * torch.sigmoid(a)", "a * torch.sigmoid(a)"),
    ("erf for tanh", "unit_quick_gelu", "native-gelu", ROUNDING, "a * torch.sigmoid(1.702 * a)", "F.gelu(a)"),
    ("mean for sum over the batch", "loss_sum_over_batch", "fuse-cross-entropy", ROUNDING, ".sum() / out.size(0)", ".mean()"),
    ("mean over all for mean over classes", "loss_one_hot", "fuse-cross-entropy", ROUNDING, ".sum(-1).mean()", ".mean()"),
    ("masked labels counted", "loss_masked", "weigh-masked", ROUNDING, "/ mask.sum()", "/ mask.numel()"),
    ("empty mask gives zero for nan", "loss_picked_of_nothing", "weigh-masked", ROUNDING, "return F.cross_entropy(picked, y[y != 0])", "return F.cross_entropy(picked, y[y != 0]) if len(picked) else 0 * out.sum()"),
)  # fmt: skip


def mutations() -> Iterator[Mutation]:
    """All wrong edits. Raises ValueError where one no longer fits its program."""
    programs = {one.name: one for one in suite()}
    for name, program, fixer, gate, before, after in _KINDS:
        if program not in programs:
            raise ValueError(f"{name}: there is no program {program}")
        text = programs[program].text
        if text.count(before) != 1:
            raise ValueError(f"{name}: {before!r} stands {text.count(before)} times in {program}")
        yield Mutation(name, programs[program], text.replace(before, after), fixer, gate)
