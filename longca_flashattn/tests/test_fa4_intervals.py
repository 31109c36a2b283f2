"""The tables and lists that fa4 plans for a mask show exactly the mask, on the CPU."""

import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import Form
from longca_flashattn.fa4_intervals import plan_intervals

SEQLEN = 1000
PATTERNS = [name for name in masks.PATTERNS if not name.endswith("block_sparse")]


def plan(pattern, direction="backward", head_dim=128):
    mask = masks.sample(pattern, seqlen=SEQLEN, lengths="pile", seed=3)
    device = Device("cpu")
    problem = Problem(
        mask=mask, heads_q=8, heads_kv=1, head_dim=head_dim, dtype="bfloat16", device=device, direction=direction
    )
    return mask, plan_intervals(problem, "test")


def seen(table, others):
    """The matrix that a table of intervals shows: [tokens, others]."""
    other = torch.arange(others)
    pairs = table.view(len(table), -1, 2)
    return ((other >= pairs[..., :1]) & (other < pairs[..., 1:])).any(1)


def is_shown_by(table, lists, visible):
    """Whether a table shows a matrix. If no tile is partly visible, there is no table and the lists are enough."""
    tokens, others = visible.shape
    if table is None:
        return not lists.counts.any()
    return len(table) == 1024 and not table[tokens:].any() and torch.equal(seen(table, others)[:tokens], visible)


def tiles(partial, full, columns):
    """Visibility of each tile, [rows, columns]: 0 is hidden, 1 is partial, 2 is full."""
    out = torch.zeros(len(partial.counts), columns, dtype=torch.int)
    for value, lists in ((1, partial), (2, full)):
        for row, (count, entries) in enumerate(zip(lists.counts.tolist(), lists.columns, strict=True)):
            assert entries[:count].diff().gt(0).all(), "ascending: the kernel begins with the last, ragged one"
            out[row, entries[:count].long()] = value
    return out


def of_tiles(visible, height, width):
    """Visibility of each tile of a dense mask, in the same form."""
    rows = []
    for top in range(0, visible.shape[0], height):
        parts = [visible[top : top + height, left : left + width] for left in range(0, visible.shape[1], width)]
        rows.append([0 if not part.any() else 2 if part.all() else 1 for part in parts])
    return torch.tensor(rows, dtype=torch.int)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tables_and_lists_hold_the_mask(pattern):
    mask, made = plan(pattern)
    visible = torch.from_numpy(mask.dense())
    assert made.form is Form.ROW_INTERVALS
    assert is_shown_by(made.rows, made.partial, visible)
    assert is_shown_by(made.columns, made.partial_by_key, visible.T)
    assert torch.equal(tiles(made.partial, made.full, 8), of_tiles(visible, 128, 128))
    assert torch.equal(tiles(made.partial_by_key, made.full_by_key, 16), of_tiles(visible.T, 128, 64))
