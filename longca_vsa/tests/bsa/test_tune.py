"""The tuning script: its masks and configurations. The tests of longca-triton cover the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from longca import Device, Problem
from longca_triton.checking import load_script
from longca_triton.tuning import OPERATIONS
from longca_vsa.bsa.configs import candidates, unit_of


@pytest.fixture(scope="module")
def script():
    return load_script(Path(__file__).parents[2] / "benchmarks" / "tune.py")


@pytest.mark.parametrize(("mask_heads", "heads"), [("shared", 1), ("kv", 8), ("query", 64)])
def test_blocks_of_one_size(script, mask_heads, heads):
    mask = script.build(script.parse(["--block", "48", "--mask-heads", mask_heads]), 1000)
    assert (mask.heads, mask.seqlen_q, mask.block_size) == (heads, 1000, 48)


def test_blocks_of_unequal_sizes(script):
    mask = script.build(script.parse(["--variable", "100", "--kept", "0.3"]), 4000)
    sizes = np.diff(mask.k_bounds)
    assert len(sizes) == 40
    assert sizes.min() > 0
    assert unit_of(mask.k_bounds) is None
    assert mask == script.build(script.parse(["--variable", "100", "--kept", "0.3"]), 4000), "each time the same"


@pytest.mark.parametrize("arguments", [["--block", "16"], ["--variable", "128"]])
def test_short_masks_are_of_the_same_blocks(script, arguments):
    arguments = script.parse(arguments)
    problem = Problem(mask=script.build(arguments, 2048), heads_q=64, heads_kv=8, device=Device("cuda", (9, 0)))
    (short,) = script.short_problems(arguments, problem)
    assert short.mask.seqlen_q <= 512
    assert short.mask.block_size == problem.mask.block_size
    assert (short.heads_q, short.device) == (64, problem.device)


def test_what_is_in_use_is_tried_beside_the_grid(script):
    problem = Problem(mask=script.build(script.parse([]), 2048), heads_q=64, heads_kv=8, device=Device("cuda", (9, 0)))
    tried = script.all_candidates(problem)
    assert tuple(tried) == tuple(OPERATIONS)
    for kernel, configs in tried.items():
        assert set(candidates(kernel, 128, (9, 0))) <= set(configs)
        assert set(script.GRID[kernel]) <= set(configs)
