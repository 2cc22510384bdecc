"""Readers of files written beside a run: the watcher's own records, and GPU samplers' logs.

rank<k>/ of a run folder ──▶ line_records ──▶ rank_records
nvidia-smi, DCGM, loggers ──▶ telemetry_csv
"""
