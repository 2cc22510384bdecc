"""The tabs that show what the steps consist of: a timeline, and tables of kernels and operators.

lane_drawing ──▶ timeline_view ──▶ timeline_tab
profile_tab: the two tables; memory_tab: the device's memory over time
"""
