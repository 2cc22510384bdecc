"""What the steps consist of, as words, as tables, and as data of a page."""

from __future__ import annotations

import json

import pytest

from diagnose.model import KernelRow, Lane, MemoryTimeline, StepProfile, Timeline
from diagnose.report.page.page_data import memory_picture, timeline_json
from diagnose.report.sections.profile_tables import kernel_table, sorted_rows
from diagnose.report.style.kernel_names import short_kernel


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, "
            "3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
            "vectorized_elementwise_kernel (CUDAFunctor_add)",
        ),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8>(float*, int)", "softmax_warp_forward"),
        ("_ZN17cutlass__5x_cudnn6KernelINS_4convE", "Kernel"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n", "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("<<<", "<<<"),
    ],
)
def test_a_kernel_is_called_by_its_function(written: str, said: str) -> None:
    assert short_kernel(written) == said


def profile() -> StepProfile:
    rows = (
        KernelRow("a_gemm", "matmul", 6_000_000, 2),
        KernelRow("b_add", "pointwise", 2_000_000, 40, operator="aten::add"),
    )
    return StepProfile(None, 2, 10_000_000, rows)


def test_a_table_is_of_a_mean_step_and_leaves_out_what_no_row_has() -> None:
    table = kernel_table(profile())
    assert [column.title for column in table.columns] == [
        *("time", "share", "count", "each", "class", "kernel", "operator")
    ]
    assert [cell.words for cell in table.rows[0].cells] == [
        *("3.00 ms", "60 %", "1", "3.00 ms", "matrix product", "a_gemm", "")
    ]


def test_rows_without_a_value_come_last_however_they_are_sorted() -> None:
    table = kernel_table(profile())
    operator = [column.title for column in table.columns].index("operator")
    for reverse in (True, False):
        assert [row.full_name for row in sorted_rows(table, operator, reverse)] == ["b_add", "a_gemm"]
    assert [row.full_name for row in sorted_rows(table, 2, True)] == ["b_add", "a_gemm"]


def test_a_hostile_name_ends_no_script() -> None:
    lane = Lane("</script><b>", "device", (0,), (5,), (0,), (0,))
    text = timeline_json(Timeline(0, (0, 10), 0, ("</script><script>alert(1)",), ("matmul",), (lane,)))
    assert "<" not in text and ">" not in text
    assert json.loads(text)["labels"] == ["</script><script>alert(1)"]


def test_memory_over_time_is_stacked_to_the_top() -> None:
    picture = memory_picture(MemoryTimeline((0, 10), {"parameters": (50, 50), "activations": (0, 50)}))
    assert picture is not None
    assert [area.look.label for area in picture.areas] == ["parameters", "activations"]
    assert picture.areas[1].points.startswith("0.0,90.0 1000.0,0.0")
    assert memory_picture(MemoryTimeline(None, {})) is None
