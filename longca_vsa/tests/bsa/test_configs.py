"""The table of configurations: complete, of shapes that the kernels take, and chosen by the fill of a tile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from longca import Device, Problem
from longca.masks import BlockSparseMask
from longca_vsa.bsa import BSA
from longca_vsa.bsa.configs import FromScores, candidates, choose, recomputing

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


def _large(block=64, heads_q=16, heads_kv=2, head_dim=128, seqlen=8192, capability=HOPPER, mask_heads=2):
    bounds = uniform(block, seqlen)
    mask = BlockSparseMask(np.ones((mask_heads, len(bounds) - 1, len(bounds) - 1), bool), bounds, bounds)
    return Problem(mask=mask, heads_q=heads_q, heads_kv=heads_kv, head_dim=head_dim, device=Device("cuda", capability))


@pytest.mark.parametrize(
    ("fields", "stores"),
    [
        ({}, True),
        ({"block": 128}, True),
        ({"heads_kv": 8, "mask_heads": 1}, True),
        ({"heads_kv": 1, "mask_heads": 1}, True),
        ({"mask_heads": 16}, False),  # the heads of a group walk lists of their own
        ({"heads_kv": 16, "mask_heads": 1}, False),
        ({"block": 96}, False),
        ({"head_dim": 64}, False),
        ({"seqlen": 4096}, False),  # 2.7e8 pairs
        ({"capability": (8, 0)}, False),
        ({"capability": (10, 0)}, False),
        ({"capability": None}, False),
    ],
)
def test_gradients_of_scores_are_stored_where_that_was_measured_to_be_faster(fields, stores):
    problem = _large(**fields)
    configs, other = choose(problem), recomputing(problem, problem.device.capability)
    assert (configs.forward, configs.dkdv) == (other.forward, other.dkdv)
    assert isinstance(configs.dq, FromScores) == stores
    assert stores or configs == other
    if stores:
        assert configs.dq.block_n == configs.dkdv.block_n
        assert configs.dq.store == 8 * 8192 * 16 * 128 * 2


@pytest.mark.parametrize(
    ("fields", "whole"), [({}, True), ({"block": 128, "seqlen": 8256}, True), ({"seqlen": 8200}, False)]
)
def test_a_kernel_for_hopper_has_whole_tiles_of_keys(fields, whole):
    assert choose(_large(**fields)).dq.hopper == whole


def test_the_launch_for_hopper_is_made_where_triton_and_the_tensors_allow_it(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    from longca_vsa.bsa import launches, launches_by_part

    def chosen(config, *tensors):
        return launches_by_part._dkdv_of(config, *tensors).__name__.removeprefix("longca_vsa.bsa.")

    config, plain = choose(_large()).dq, launches.__name__.removeprefix("longca_vsa.bsa.")
    tensors = [torch.zeros(64, 2, 128, dtype=torch.bfloat16) for _ in range(4)]
    odd = torch.zeros(64, 2, 129, dtype=torch.bfloat16)[..., :128]
    monkeypatch.setattr(launches_by_part, "missing", lambda _: None)
    assert chosen(config, *tensors) == "hopper.launch"
    assert chosen(replace(config, hopper=False), *tensors) == plain
    assert chosen(config, odd, *tensors) == plain
    monkeypatch.setattr(launches_by_part, "missing", lambda _: "triton 3.5 is installed")
    assert chosen(config, *tensors) == plain
