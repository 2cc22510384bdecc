"""Measures a model's blocks as the probe of a watched run does, for programs that are not watched."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.blocks.block_probe import TIMES, Blocks
from diagnose.model import Site


def probed(step: Callable[[], object]) -> list[Site]:
    """The sites of the blocks, after as many calls of `step` as the probe needs: each a whole step of the training."""
    sites = Sites()
    probe = Blocks(sites)
    probe.install(torch)
    for index in range(TIMES + 1):
        step()
        probe.step_ended(index)
    return [Site(**json.loads(line)) for _, text in sites.drain() for line in text.splitlines()]
