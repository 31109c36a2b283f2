"""The plan, on the CPU: its contents and its size."""

from __future__ import annotations

import pytest

import longca
from longca.masks import Form
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import packed_heads
from longca_vsa.bsa.plan import make_plan

CONFIGS = Configs(Config(128, 64, 4, 2), Config(64, 64, 4, 2), Config(128, 32, 8, 3))


def problem(mask_heads=2, direction="backward", block=64, seqlen=1000, heads=(8, 2), kept=0.5):
    mask = longca.masks.build("uniform_block_sparse", seqlen=seqlen, block=block, kept=kept, heads=mask_heads)
    device = longca.Device("cpu")
    return longca.Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=device, direction=direction)


def test_a_plan_of_the_forward_alone_has_no_tables_of_the_backward():
    made = make_plan(problem(direction="forward"), CONFIGS)
    assert made.form is Form.BLOCK_SPARSE
    assert set(made.tiles) == {"forward"}
    assert not made.by_key
    assert set(made.by_query[0].steps) == {64}
    assert 0 < made.metadata_bytes < make_plan(problem(), CONFIGS).metadata_bytes


def test_a_plan_of_both_directions_has_the_tiles_of_each_kernel():
    made = make_plan(problem(), CONFIGS)
    assert set(made.tiles) == {"forward", "dkdv", "dq"}
    assert made.lists("forward") is made.lists("dq")
    assert set(made.lists("forward").steps) == {32, 64}
    assert set(made.lists("dkdv").steps) == {64}


@pytest.mark.parametrize(
    ("mask_heads", "heads", "packed", "heads_a_mask", "passes"),
    [(1, (8, 2), 4, 8, 1), (2, (8, 2), 4, 4, 1), (8, (8, 2), 1, 1, 4), (3, (3, 3), 1, 1, 1), (1, (3, 3), 1, 3, 1)],
)
def test_heads(mask_heads, heads, packed, heads_a_mask, passes):
    asked = problem(mask_heads, heads=heads)
    made = make_plan(asked, CONFIGS)
    assert (packed_heads(asked), made.packed, made.heads_a_mask, made.passes) == (packed, packed, heads_a_mask, passes)
    assert made.tiles["forward"].programs == heads[0] // packed * len(made.tiles["forward"].table)
    assert made.tiles["dkdv"].programs == heads[1] * len(made.tiles["dkdv"].table)
