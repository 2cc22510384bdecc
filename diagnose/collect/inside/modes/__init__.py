"""The modes of a watched process: the recipe names one of these modules, whose `start(recipe, hub)` is called.

watch, heartbeat, ab_worker ──▶ inside.window
ab_worker       blocks of steps on the controller's demand
capture ◀── reference, step_state ◀── checkpoint_contents
trajectory;  capture_pause
"""
