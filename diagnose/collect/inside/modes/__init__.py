"""What a watched process does: `start(recipe, hub)` of the module that the recipe names as its mode.

watch ──▶ tracing ◀── steadiness, trace_agreement, profiler_window
ab_worker       blocks of steps on the controller's demand
capture ◀── float64_reference, step_state ◀── checkpoint_contents
trajectory;  capture_pause
"""
