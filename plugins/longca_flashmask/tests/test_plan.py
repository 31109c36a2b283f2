"""The plan, on the CPU: its contents and its size."""

from __future__ import annotations

import pytest

import longca
from longca.masks import Form
from longca_flashmask.plan import make_plan
from longca_triton.config import Config, Configs

CONFIGS = Configs(Config(128, 128, 8, 2), Config(64, 128, 8, 2), Config(128, 64, 8, 2))


def plan(direction="backward", configs=CONFIGS, pattern="causal", **factors):
    mask = longca.masks.build(pattern, seqlen=1000, **factors)
    return make_plan(longca.Problem(mask=mask, heads_q=4, device=longca.Device("cpu"), direction=direction), configs)


def test_a_plan_of_the_forward_alone_has_no_tables_of_the_backward():
    made = plan("forward")
    assert made.form is Form.COLUMN_INTERVALS
    assert made.key_intervals is None
    assert list(made.by_query) == [(128, 128)]
    assert not made.by_key
    assert 0 < made.metadata_bytes < plan().metadata_bytes


def test_a_plan_of_both_directions_has_the_tiles_of_each_kernel():
    made = plan()
    assert set(made.by_query) == {(128, 128), (128, 64)}
    assert set(made.by_key) == {(64, 128)}
    assert made.query_intervals.starts.shape == made.key_intervals.stops.shape == (1, 1000)


def test_kernels_of_one_tile_share_their_table():
    made = plan(configs=Configs(CONFIGS.dq, CONFIGS.dkdv, CONFIGS.dq))
    assert list(made.by_query) == [(128, 64)]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_metadata_is_linear_in_the_sequence(direction):
    documents = [300, 400, 300]
    small = plan(direction, pattern="shared_question", documents=documents).metadata_bytes
    assert small < 1000 * 4 * 8
