"""The process itself: facts about it, its seeds, where its ranks meet, what it must not write, how it ends.

process_facts, calibrations ──▶ facts.json
rendezvous, socket_dir, write_protection, source_digest       a copy of the program in a trial
seeds, rng_state, garbage_collection, termination
"""
