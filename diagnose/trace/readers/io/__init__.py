"""Bytes of files, read with limits: what the formats share.

file ──▶ blocks ──▶ csv_rows;  sqlite_file ──▶ sqlite_numbers
           ▲  └──▶ truncated_json, plain_pickle, protobuf_wire
limits, prefetch, reader_processes       how much, how early, in how many processes
"""
