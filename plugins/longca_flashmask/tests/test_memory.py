"""The manifest's formulas of memory, compared with plans."""

import pytest

from longca import Device, Problem, masks
from longca.masks import Form
from longca_flashmask.flashmask import FlashMask
from longca_flashmask.memory import plan_bytes, workspace

STATIC = [pattern for pattern in masks.PATTERNS if not pattern.endswith("block_sparse")]


def _problem(pattern, direction, seqlen=3000):
    mask = masks.sample(pattern, seqlen=seqlen, seed=1)
    return Problem(mask=mask, heads_q=64, heads_kv=8, device=Device("cpu"), direction=direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("pattern", STATIC)
def test_intervals_and_tiles(pattern, direction):
    problem = _problem(pattern, direction)
    made = FlashMask().plan(problem).metadata_bytes
    # A run at the edge of the keys may be two: its last tile is masked, and the others are not.
    assert made * 0.9 <= plan_bytes(problem, Form.COLUMN_INTERVALS) <= made


def test_two_numbers_a_query():
    assert workspace(_problem("causal", "forward"), Form.COLUMN_INTERVALS) == 0
    assert workspace(_problem("causal", "backward", 4096), Form.COLUMN_INTERVALS) == 2 * 4 * 64 * 4096
