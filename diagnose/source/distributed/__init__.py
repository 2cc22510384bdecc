"""How a program trains on several ranks.

training_loop ──▶ data_parallel, fsdp       the wrapper and its options
parameter_loops       collectives by hand, parameter by parameter
dynamic_parameters       whether every step uses all parameters
"""
