"""What a kernel's name says of it; what it does not say stays unknown."""

from __future__ import annotations

import pytest

from diagnose.measure import Measures
from diagnose.measure.views.kernel_classes import KernelClass, MatmulFormat, class_of, matmul_format
from diagnose.trace.drawn import drawn


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", KernelClass.COLLECTIVE),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", KernelClass.COLLECTIVE),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(...)", KernelClass.COLLECTIVE),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", KernelClass.MATMUL),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x64_MI32x32x8x1", KernelClass.MATMUL),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            KernelClass.POINTWISE,
        ),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", KernelClass.ATTENTION),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", KernelClass.CONVOLUTION),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", KernelClass.NORM),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
            KernelClass.OPTIMIZER,
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", KernelClass.REDUCTION),
        ("my_special_kernel", KernelClass.OTHER),
    ],
)
def test_the_class_of_a_kernel(name: str, expected: KernelClass) -> None:
    assert class_of(name) is expected


@pytest.mark.parametrize(
    ("name", "dtype", "tensor_cores"),
    [
        ("ampere_sgemm_128x64_tn", "fp32", False),
        ("volta_sgemm_64x64_nn", "fp32", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(Params)", "fp32", False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3", "fp32", False),
        ("ampere_scudnn_128x64_relu_medium_nn_v1", "fp32", False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4", "tf32", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(Params)", "tf32", True),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "bf16", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "fp16", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "fp16", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "bf16", True),
        ("triton_tem_fused_mm_3", None, None),
    ],
)
def test_number_format_and_unit_of_a_product(name: str, dtype: str | None, tensor_cores: bool | None) -> None:
    assert matmul_format(name) == MatmulFormat(dtype, tensor_cores)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Inductor names the kind of its kernel first; the operators after it say what was fused, not what it is.
        ("triton_poi_fused__scaled_mm__to_copy_clone_div_0", KernelClass.POINTWISE),
        ("triton_per_fused__flash_attn_backward__unsafe_view_mul_sum_view_10", KernelClass.REDUCTION),
        ("triton_red_fused_native_layer_norm_native_layer_norm_backward_3", KernelClass.NORM),
        ("triton_tem_fused_addmm_3", KernelClass.MATMUL),
        ("triton_tem_fused_flex_attention_0", KernelClass.ATTENTION),
        ("triton_tem_fused_convolution_1", KernelClass.CONVOLUTION),
        # A conversion is no convolution, and a batch norm of MIOpen neither.
        ("vllm::_typeConvert<c10::BFloat16>::exists vllm::fused_add_rms_norm_kernel<c10::BFloat16>", KernelClass.NORM),
        ("MIOpenBatchNormBwdSpatial", KernelClass.NORM),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", KernelClass.POINTWISE),
        ("batched_transpose_32x32_half", KernelClass.POINTWISE),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>", KernelClass.POINTWISE),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_f2x3_stride1", KernelClass.CONVOLUTION),
        ("_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_26FmhaFwdTilePartitioner_HBS", KernelClass.ATTENTION),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>", KernelClass.ATTENTION),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>", KernelClass.REDUCTION),
        ("void mul_mat_q<(ggml_type)2, 128, false>(char const*, int const*)", KernelClass.MATMUL),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", KernelClass.OTHER),
    ],
)
def test_the_class_of_a_kernel_that_resembles_another(name: str, expected: KernelClass) -> None:
    assert class_of(name) is expected


@pytest.mark.parametrize(
    ("op", "kernel", "expected"),
    [
        ("aten::mm", "Kernel2", KernelClass.MATMUL),
        ("aten::_scaled_dot_product_cudnn_attention_backward", "cudnn_generated_dot_do_o", KernelClass.ATTENTION),
        ("aten::cudnn_convolution", "ampere_sgemm_32x32_sliced1x4_tn", KernelClass.CONVOLUTION),
        ("aten::convolution_backward", "void fft2d_r2c_32x32<float, false>", KernelClass.CONVOLUTION),
        ("aten::convolution_backward", "void cudnn::ops::nhwcToNchwKernel<float>", KernelClass.POINTWISE),
        ("aten::native_group_norm_backward", "ComputeInternalGradientsCUDAKernel<float>", KernelClass.NORM),
        ("aten::native_layer_norm", "void at::native::vectorized_elementwise_kernel<4>", KernelClass.NORM),
        (
            "aten::_foreach_norm",
            "multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor>",
            KernelClass.REDUCTION,
        ),
        ("aten::_fused_adamw_", "void at::native::anything_elementwise", KernelClass.OPTIMIZER),
        ("aten::mul", "fc-dtype_Float", KernelClass.POINTWISE),
        ("my_library::special", "my_special_kernel", KernelClass.OTHER),
        ("aten::mm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", KernelClass.COLLECTIVE),
    ],
)
def test_the_operator_says_what_the_name_leaves_open(op: str, kernel: str, expected: KernelClass) -> None:
    trace = drawn(
        """
        host: xl
        gpu :   k
        """,
        ops={"x": op},
        kernels={"k": kernel},
    )
    assert Measures(trace).classes.tolist() == [expected]


def test_small_kernels_that_the_optimizer_launches_are_the_optimizers() -> None:
    trace = drawn(
        """
        host: olxlolxl
        gpu :   e g e g
        opt :     OOOO
        """,
        ops={"o": "aten::mul", "x": "aten::mm"},
        kernels={"e": "vectorized_elementwise_kernel", "g": "ampere_sgemm_32x32"},
    )
    product, optimizer = KernelClass.MATMUL, KernelClass.OPTIMIZER
    assert Measures(trace).classes.tolist() == [KernelClass.POINTWISE, product, optimizer, product]


def test_a_step_that_runs_the_backward_pass_in_a_closure_is_not_all_optimizer() -> None:
    trace = drawn(
        """
        host: olxl
        gpu :   e e
        opt : OOOO
        """,
        ops={"o": "aten::mul", "x": "autograd::engine::evaluate_function: MulBackward0"},
        kernels={"e": "vectorized_elementwise_kernel"},
    )
    assert Measures(trace).classes.tolist() == [KernelClass.POINTWISE] * 2
