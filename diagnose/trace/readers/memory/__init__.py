"""PyTorch's memory recordings.

memory_snapshot ◀── snapshot_blocks;  memory_timeline
"""
