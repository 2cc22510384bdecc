"""Tries the fixes of a program that runs, and keeps those that hold together.

greedy_search ──▶ bundle, budget_fit (many fixes at once) ──▶ single_trial, latent_findings (one fix)
              ──▶ leave_one_out (what the others made needless) ──▶ tuning (knobs) ──▶ final_check (the whole)
budget: what there is time for;  trials: what is asked of the test bench;  copies: of the program, one of each text
"""
