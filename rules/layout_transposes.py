"""Images are written again in another memory format around convolutions.

What it finds
    Kernels that only move an image between NCHW (one channel after the other) and NHWC (channels last): those that
    cuDNN and MIOpen launch around a convolution, and copies by `contiguous` inside a convolution or right beside one.

Why it costs
    The convolutions that use tensor cores want channels last. Given NCHW, the library converts input, weight and
    gradient before each of them and the result after it: every conversion reads and writes the whole tensor.

What proves it
    The conversions' own time on the device, replayed without them. cuDNN's and MIOpen's are known by their names, the
    copies by the operator that launched them and by its shape. Kernels that pad or cast are needed in either format and
    are not counted; nor is what torch.compile writes, which chooses the format by itself and mixes it with other work.

What fixes it
    `model.to(memory_format=torch.channels_last)`, and the same for its input (`channels-last`).

Thresholds
    None: what the conversions take is what goes, but for one conversion of the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.replay.savings import scaled_ns
from diagnose.measure.steps.step_share import of_traced_step
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.rule import CannotTell, Claim, Evidence, Measures, Rule, Symptom, drawn, format_ns


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Time of conversions between memory formats."""
    if not measures.has_device:
        yield CannotTell("layout-transposes", "a recording of the device's work")
        return
    rows = measures.rows_within_steps(measures.layout_conversions)
    if len(rows) == 0:
        return
    time = measures.time_of(rows)
    # What runs beside other work is not waited for: the replay knows, else the accounting.
    scale = np.where(measures.layout_conversions, 0.0, 1.0)
    alone = time - measures.time_of(measures.rows_within_steps(~measures.layout_conversions))
    replayed = scaled_ns(measures, scale)
    gain = alone.total_ns if replayed is None else min(replayed, time.total_ns)
    if gain == 0:
        return
    convolutions = measures.rows_within_steps(
        (measures.classes == KernelClass.CONVOLUTION) & ~measures.layout_conversions
    )
    beside = measures.time_of(convolutions).total_ns
    against = f", beside {format_ns(beside / measures.step_count)} of convolutions" if beside else ""
    yield Claim(
        summary=f"{of_traced_step(measures, time)} go "
        f"to {len(rows) / measures.step_count:.0f} kernels that convert images between NCHW and channels last{against}",
        recoverable_ns=gain,
        claims=time,
        evidence=[
            Evidence(
                "conversions of the memory format", time.total_ns // measures.step_count, "ns", tuple(rows.tolist())
            ),
            Evidence("conversions per step", len(rows) / measures.step_count, "count"),
            Evidence("convolutions", beside // measures.step_count, "ns", tuple(convolutions.tolist())),
        ],
        where=places_of_ops(measures, measures.op_of_work[rows]),
    )


_CUDNN = {
    "a": "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>",
    "b": "void cudnn::ops::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false>",
    "k": "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn",
}

_drawn = partial(drawn, repeat=4, kernels=_CUDNN)
_FIRES = (
    # cuDNN converts around each convolution.
    _drawn("""
        host: olololololsssssssssss
        gpu :   aaakkkkbbaakkkkkkkk
        step:                      |
    """),
    # MIOpen under another name.
    drawn(
        """
        host: olololol sssssss
        gpu :   tttkkkkttkkkkk
        step:                 |
        """,
        repeat=4,
        kernels={
            "t": "batched_transpose_32x32_half.kd",
            "k": "igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt256x128x32_wt32x32x8_ws1x1_wr2x2",
        },
        device_names=("AMD Instinct MI300X",),
    ),
)

_SILENT = (
    # Channels last already: padding and the cast of the input remain.
    drawn(
        """
        host: ololol
        gpu :   ppkkkkkkqq
        step:             |
        """,
        repeat=4,
        kernels={
            "p": "void cudnn::ops::nhwcAddPaddingKernel<__nv_bfloat16, __nv_bfloat16, float, true>",
            "q": "void cudnn::bn_fw_tr_1C11_kernel_NHWC<float, float, int, 512, true, 1, true>",
            "k": _CUDNN["k"],
        },
    ),
    # Copies that belong to attention: no operator says that they convert an image.
    drawn(
        """
        host: ololol
        gpu :   ppkkkkkkpp
        step:             |
        """,
        repeat=4,
        kernels={
            "p": "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(TensorIteratorBase&)>",
            "k": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        },
    ),
    # The conversions run on a stream of their own, under the convolutions.
    _drawn("""
        host  : olol ssssssssss
        gpu   :   kkkkkkkkkkkkk
        gpu 7 :      aa
        step  :                |
    """),
)

RULE = Rule(
    "layout-transposes",
    check,
    fixers=("channels-last",),
    fires=_FIRES,
    silent=_SILENT,
    nearness=30,
    symptom=Symptom.KERNELS,
)
