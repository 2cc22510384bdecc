"""Readers of AMD's profilers: rocprof, rocprofv2, rocprofv3, rocpd, rocmProfileData, Perfetto.

rocprof_csv ◀── rocprof_columns ─┐
rocprof_db, rocprof_json ────────┤
rocprofv3_json, pftrace ─────────┼──▶ rows ──▶ recording ──▶ traces
rocpd, rpd ──────────────────────┘      └─ meaning, rccl
"""
