"""The manifest's plan bytes, compared with real plans."""

import pytest

from longca import Device, Problem, masks
from longca_flex import FLEX
from longca_flex.flex import Flex
from longca_flex.memory import plan_bytes, workspace

BOUNDS = (0, 3, 64, 65, 130, 700, 1100)
MASKS = {
    **{pattern: masks.sample(pattern, seqlen=1100, seed=1) for pattern in masks.PATTERNS if "sparse" not in pattern},
    **{
        f"blocks of {block}": masks.build("uniform_block_sparse", 1100, block=block, kept=0.4, heads=8, seed=1)
        for block in (16, 48, 64, 128)
    },
    "variable blocks": masks.build("variable_block_sparse", 1100, boundaries=BOUNDS, kept=0.4, heads=8, seed=1),
}


def _problem(mask, direction):
    return Problem(mask=mask, heads_q=64, heads_kv=8, device=Device("cpu"), direction=direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", MASKS)
def test_lists_and_what_tokens_see(name, direction):
    problem = _problem(MASKS[name], direction)
    plan = Flex().plan(problem)
    assert plan_bytes(problem, plan.form) == plan.metadata_bytes


def test_sums_of_each_query():
    lse = 4 * 64 * 1100
    forward, backward = (_problem(MASKS["causal"], direction) for direction in ("forward", "backward"))
    assert workspace(forward, FLEX.offers[0].form) == lse
    assert workspace(backward, FLEX.offers[0].form) == 2 * lse


def test_copies_where_strides_do_not_fit_into_32_bits():
    mask = masks.build("causal", seqlen=2**18)
    q, lse = 2**32, 4 * 64 * 2**18
    assert workspace(_problem(mask, "forward"), FLEX.offers[0].form) == q + lse
