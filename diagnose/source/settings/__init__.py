"""Where a program sets a value: in a call, a constant, an option, a config file, or a library's trainer.

configs, executed_configs, defaults ──▶ values ──▶ options ◀── mappings
                                                     └──▶ trainers
"""
