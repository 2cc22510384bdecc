"""Processes of a trial: started in copies of the program, watched, paused and ended as a whole.

workspace ──▶ arm ──▶ process_group ──▶ watchdog       ends what a killed controller left
               │           └──▶ stderr_tail       what the program said at its end
               └──▶ loader_drain       batches that waited while the arm was paused
capacity ◀── host_memory ──▶ makespan       how many processes fit side by side
write_guard, oom_progress       what a copy wrote outside; how far it came before memory ran out
"""
