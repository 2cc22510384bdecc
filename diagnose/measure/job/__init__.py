"""The ranks of one job together.

each rank ──▶ rank_record ──▶ matching ──▶ ranks ──▶ waits, bus_bandwidth, job_replay
                                            │
             process_groups ────────────────┴──▶ job_report       all that lies between the ranks
"""
