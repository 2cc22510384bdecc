"""Places at which torch and the program are met: ends of steps, constructors, loaders, errors.

step_hooks ──▶ paused_loader_workers, loader_stock
sites, modules, optimizers, devices_in_use       what the program builds, and where
out_of_memory, inductor_cache_workaround       what ends the process
"""
