"""What a kernel's name says of it; what it does not say stays unknown."""

from __future__ import annotations

import pytest

from diagnose.measure.kernels import KernelClass, MatmulFormat, class_of, matmul_format


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
