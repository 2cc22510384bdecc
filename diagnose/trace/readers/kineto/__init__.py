"""torch.profiler's Kineto documents: Chrome JSON, plain or gzip.

torch_profiler ──▶ document ──▶ chunks ──▶ events ◀── regular_events ◀── meaning
                      └──▶ document_parts       several processes       │
                               └──▶ whole_document ──▶ tables ◀── readers.columns, timestamps, memory_events
                                                          └──▶ rank_trace
"""
