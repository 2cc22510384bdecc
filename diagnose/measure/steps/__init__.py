"""The counted steps of one rank, and where their time went.

step_marks ──▶ steps ──▶ timeline ◀── accounting        device classes that sum to the step
                            ├◀───── host_accounting    where no device work was recorded
                            └◀───── idle ◀── full_queue       one cause for each idle gap
outlier_steps ──▶ pace        steps that take longer, and a step's length without a profiler
backward_passes, optimizer_work        phases of a step
consistency        what a recording says that cannot be
"""
