"""The files that a watched process leaves in `rank<k>/` of its run folder: their names and their lines.

The process that is watched writes them with the standard library alone (`collect.inside`), line by line from a side
thread; `trace.readers.run_folder` reads them into a `Trace`. All times are nanoseconds since the epoch.

    trace.json.gz    the torch.profiler window, as Kineto wrote it
    window.json      {"start_ns", "end_ns", "first_step", "steps", "steady"}: the window, and why it began when it did
    lines.json.gz    {"start_ns", "whole", "frames": [[file, line, function, caller], …], "t": [ns], "f": [place]}:
                     the user's lines that the training thread was at in the step after the window, which is in
                     trace.json.gz as well; `t` since the entry before, `f` and `caller` places in `frames`, -1 none
    steps.jsonl      {"t": end_ns, "b": backwards, "w": input_ns}, a line a step; after MOST_STEPS of them the newest
                     step at each writing, with "n": how many there were before it that have no line
    ranges.jsonl     {"k": kind, "s": start_ns, "e": end_ns, "n": name, "t": thread id}
                     kind: input | gc | compile | checkpoint
    stacks.jsonl     {"i": id, "f": [[file, line, function], …]} innermost first, before its first use
    samples.jsonl    {"t": [time_ns, …], "s": [stack id, …]}
    sites.jsonl      {"kind", "file", "line", "function", "arguments": {…}}: what the program built, and under the kinds
                     graph_break and recompile what torch.compile did with it (`inside.probes.compiler_log`), keeps
                     graphs which variable collects them (`inside.probes.graph_leaks`), out of memory where the program
                     ended of it, broken cache entry likewise (`inside.hooks.inductor_cache_workaround`), blocks where
                     it calls the repeated blocks of its model (`inside.probes.blocks`), draws where it makes samples
                     that draw random numbers (`inside.probes.rng_use`), stepped, idle parameters and frozen parameters
                     where it built optimizers for which that holds (`inside.hooks.sites`), module classes with a file's
                     classes of modules that have instances (`inside.probes.module_classes`), loaded file for each file
                     of the program's that is loaded when its first step ends (`inside.probes.loaded_files`)
    syncs.jsonl      {"file", "line", "function", "count", "steps"}; the file exists, if empty, once somebody looked
    memory.pickle    a snapshot of the device's allocator, as torch takes it, and beside its own keys "diagnose":
                     {"reason": "steady" | "out of memory", "time_ns", "capacity_bytes", "cost_ns", "pieces":
                     [[address, bytes, parameter | gradient | optimizer_state], …]}, and of one without memory "device",
                     "wanted_bytes", "free_bytes" (`inside.probes.allocations`)
    counters.jsonl   {"t": time_ns, "d": device or -1, "v": {metric: value}}
    claim            {"pid", "device": {"ordinal", "uuid"} or null}: created by the process that is watched
    facts.json       the fields of `diagnose.model.Facts`, and "rank", "world_size", "pid", "owned_roots"
    numbers.jsonl    {"step", "kind", "name", "shape", "finite", "sha256" or "elements"}, a line a tensor
    numbers.f64      float64 elements of those tensors, one after the other
    state.json       {"steps": [{"random": {generator: hash}, "optimizers": […], "memory_bytes"}, …]}: what else each
                     captured step left behind (`inside.modes.step_state`)
    trajectory.json  {"losses": [loss or null, …], "memory_bytes": […], "optimizers": {step: […]}, "seeds_itself"}: a
                     number a step (`inside.modes.trajectory`)
    costs.json       {"steps": [{"costs": [[kind, file, line, count, size], …], "peak_bytes", "live_bytes",
                     "graph_breaks", "recorded_tensors"}, …], "sites", "settings", "tensors", "elements"}: what the
                     first steps would launch, copy and wait for on a device (`inside.modes.step_costs`)
    whole_run.json   losses, final parameters, optimizer calls and file events of a program that ran to its end
                     (`inside.modes.whole_run`)
    program.out, program.err  standard streams of one of several ranks, in a whole run
    batches.json     {"passes": [[hash of a batch, …], …]}: what the first training loader yields
    (`inside.modes.data_order`) stands           of a capture that began early, while it stands still between two steps
    (`inside.modes.capture_pause`); it
                     does so while the run folder has a file `stand`
    heartbeats.jsonl {"t": time_ns, "i": steps, "e": end of the last step, "w": input_ns, "f": forward_ns (sums so far),
                     "r": {kind: ns} (ranges since the line before), "l": [[file, line, samples], …] (likewise), "q": ns
                     without progress, "m": resident bytes, "a": allocated bytes, "b": bytes of the device, "n": ranks,
                     "x": being traced, "s": [[file, line, function, owned], …] while nothing goes on, "c":
                     [collective, …] then, "end": true in the last line}, a line a second
    closing          nothing: the window is closed, and is being written until trace.json.gz is there
    end.json         {"reason": "exit" | "exception" | "stopped", "steps": n}, and of an exception "error":
                     "ValueError: … (train.py:41)"
"""

from __future__ import annotations

TRACE = "trace.json.gz"
WINDOW = "window.json"
LINES = "lines.json.gz"
STEPS = "steps.jsonl"
RANGES = "ranges.jsonl"
STACKS = "stacks.jsonl"
SAMPLES = "samples.jsonl"
SITES = "sites.jsonl"
LOADED = "loaded file"
"""The kind of site that names one of the program's files which it has loaded."""
SYNCS = "syncs.jsonl"
COUNTERS = "counters.jsonl"
MEMORY = "memory.pickle"
FACTS = "facts.json"
HEARTBEATS = "heartbeats.jsonl"
REQUEST = "trace_request.json"
"""Beside the ranks' folders: {"folder", "step", "steps", "ranks"}: trace so many steps from that one on, into there."""
CLOSING = "closing"
END = "end.json"
CLAIM = "claim"
UNWATCHED = "unwatched.json"
"""Beside the ranks' folders: why a process that trains could not be watched, a list of texts."""
NUMBERS = "numbers.jsonl"
VALUES = "numbers.f64"
STATE = "state.json"
TRAJECTORY = "trajectory.json"
COSTS = "costs.json"
WHOLE_RUN = "whole_run.json"
STDOUT = "program.out"
STDERR = "program.err"
BATCHES = "batches.json"
STAND = "stand"
STANDS = "stands"

MOST_STEPS = 200_000
"""Steps of a process that have a line of their own, some 10 MB: of a run of days, what the disk holds stays bounded."""
MOST_SAMPLES = 500_000
"""Samples of a process, some 12 MB: two hours and three quarters of a resting sampler."""

RECIPE_VARIABLE = "DIAGNOSE_RECIPE"
"""Environment variable that holds the recipe as JSON; a process without it is not watched."""
