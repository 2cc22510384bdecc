"""From the claims of all rules about each rank to the findings of a job, and the ladder that they make.

claims ──▶ attribution, doubt ──▶ rank_digest ──▶ job ──▶ findings ──▶ ladder
"""
