"""Commands about this machine and shell.

doctor (what works here), calibrate (how fast the devices are), cache (what was tuned), completion (for the shell)
"""
