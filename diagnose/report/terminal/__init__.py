"""Reports for a terminal: a run or a recording, ranks, scaling, a comparison, a checklist, and progress as lines."""
