"""The table of configurations: complete, of shapes that the kernels take, and chosen by the fill of a tile."""

from __future__ import annotations

import numpy as np
import pytest

from longca import Device, Problem
from longca.masks import BlockSparseMask
from longca_vsa.bsa import BSA
from longca_vsa.bsa.configs import candidates, choose, heads_in_cache

CAPABILITIES = [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (13, 0)]
HOPPER = (9, 0)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("head_dim", BSA.offers[0].head_dims)
@pytest.mark.parametrize("kernel", ["forward", "dkdv", "dq"])
def test_every_head_dimension_has_configurations_on_every_device(kernel, head_dim, capability):
    for config in candidates(kernel, head_dim, capability):
        assert config.block_m in (16, 32, 64, 128)
        assert config.block_n in (16, 32, 64, 128)
        assert config.num_warps in (2, 4, 8)
        assert config.num_stages >= 1
        assert not config.tma or capability >= (9, 0)


def uniform(block, seqlen=4096):
    return np.r_[0:seqlen:block, seqlen]


def problem(bounds, packed):
    mask = BlockSparseMask(np.ones((1, len(bounds) - 1, len(bounds) - 1)), bounds, bounds)
    return Problem(mask=mask, heads_q=packed, heads_kv=1, head_dim=128, device=Device("cuda", HOPPER))


def shapes(block, packed):
    """Rows a tile of the three kernels, for blocks of one size and heads of 128 on Hopper."""
    configs = choose(problem(uniform(block), packed))
    return configs.forward.block_m, configs.dkdv.block_n, configs.dq.block_m


@pytest.mark.parametrize(
    ("block", "packed", "expected"),
    [
        (64, 8, (128, 64, 128)),
        (64, 1, (64, 64, 64)),
        (128, 1, (128, 64, 128)),
        (16, 8, (128, 16, 128)),
        (16, 1, (16, 16, 16)),
        (32, 1, (32, 32, 32)),
    ],
)
def test_tiles_are_as_large_as_blocks_fill(block, packed, expected):
    assert shapes(block, packed) == expected


def test_a_few_small_blocks_do_not_make_tiles_small():
    bounds = np.r_[0, 3, 5, 300:4096:128, 4096]
    assert choose(problem(bounds, 1)).dkdv.block_n == 64


@pytest.mark.parametrize(("cache", "heads"), [(0, 1), (4 * 1000, 1), (8 * 1000, 2), (15 * 1000, 3), (40 * 1000, 6)])
def test_heads_of_a_group_that_share_the_cache(cache, heads):
    assert heads_in_cache(cache, 6, 1000) == heads
