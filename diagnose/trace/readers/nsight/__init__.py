"""Nsight Systems' databases and tables, and Nsight Compute's.

nsight_report ──▶ nsight_sqlite ──▶ tables, nvtx_ranges, target ◀── meaning
nsight_csv, nsight_compute
"""
