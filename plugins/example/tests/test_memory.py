"""The manifest's plan bytes, compared with real plans."""

import pytest

from longca import Device, Problem, masks
from longca.masks import Form
from longca_example.memory import plan_bytes, workspace
from longca_example.online import Online


def _problem(direction="forward", seqlen=1000, pattern="prefix_lm_causal"):
    mask = masks.sample(pattern, seqlen=seqlen, seed=1)
    return Problem(mask=mask, heads_q=4, heads_kv=2, head_dim=64, device=Device("cpu"), direction=direction)


@pytest.mark.parametrize("pattern", ["full", "causal", "causal_document", "global_sliding_window"])
def test_intervals(pattern):
    problem = _problem(pattern=pattern)
    assert plan_bytes(problem, Form.ROW_INTERVALS) == Online().plan(problem).metadata_bytes


def test_tiles_do_not_grow_with_the_sequence():
    assert workspace(_problem(seqlen=1000), Form.ROW_INTERVALS) == workspace(_problem(seqlen=9000), Form.ROW_INTERVALS)
