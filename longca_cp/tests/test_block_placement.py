"""Whole blocks on parts: each token once, no block cut, tokens and kept blocks even."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import UnsupportedError
from longca_cp.block_placement import key_blocks_seen, most_tokens, unit_bounds
from longca_cp.placement import place

from .cases import block_masks, positions

KINDS = ["contiguous", "zigzag", "balanced"]


def areas(mask, placed):
    return [mask.cut(part, [(0, mask.seqlen_k)]).area for part in placed]


@given(block_masks(), st.sampled_from(KINDS), st.data())
def test_parts_hold_every_token_once_and_no_block_is_cut(mask, kind, data):
    bounds = unit_bounds(mask)
    parts = data.draw(st.integers(1, min(9, len(bounds) - 1)))
    placed = place(kind, mask, parts)
    assert sorted(token for part in placed for token in positions(part)) == list(range(mask.seqlen_q))
    ends = {end for part in placed for pair in part for end in pair}
    assert ends <= set(mask.q_bounds.tolist()) & set(mask.k_bounds.tolist())
    lengths = [len(positions(part)) for part in placed]
    assert max(lengths) <= mask.seqlen_q / parts + np.diff(bounds).max()
    for group in (1, 3):
        assert most_tokens(mask, parts, parts * group) >= -(-max(lengths) // group)
    if kind == "contiguous":
        assert min(lengths) > 0


@given(st.integers(1, 200), st.integers(1, 9), st.sampled_from(KINDS), st.integers(0, 9))
def test_blocks_of_one_size_are_dealt_evenly(blocks, parts, kind, seed):
    mask = masks.build("uniform_block_sparse", 16 * blocks, block=16, kept=0.3, seed=seed)
    if blocks >= parts:
        lengths = [len(positions(part)) for part in place(kind, mask, parts)]
        assert max(lengths) - min(lengths) <= 16


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_balance_is_of_kept_blocks(parts):
    kept = np.tril(np.ones((64, 64), bool))
    mask = masks.BlockSparseMask(kept, np.arange(65) * 8, np.arange(65) * 8)
    even = areas(mask, place("balanced", mask, parts))
    assert max(even) <= 1.02 * np.mean(even)
    assert max(areas(mask, place("contiguous", mask, parts))) > 1.4 * np.mean(even)


def test_query_blocks_and_key_blocks_of_other_sizes_meet_at_common_bounds():
    mask = masks.BlockSparseMask(np.ones((8, 3), bool), np.arange(9) * 6, np.r_[np.arange(3) * 18, 48])
    assert unit_bounds(mask).tolist() == [0, 18, 36, 48]
    assert place("contiguous", mask, 3) == (((0, 18),), ((18, 36),), ((36, 48),))
    with pytest.raises(UnsupportedError, match=r"cut for 4 ranks .* that make 3 pieces\. Put at most 3 ranks"):
        place("contiguous", mask, 4)


@given(block_masks(), st.data())
def test_the_keys_that_are_gathered_are_the_kept_blocks(mask, data):
    bounds = unit_bounds(mask).tolist()
    ends = sorted(data.draw(st.lists(st.sampled_from(bounds), max_size=6, unique=True)))
    part = tuple(zip(ends[::2], ends[1::2], strict=False))
    dense = mask.dense().reshape(-1, mask.seqlen_q, mask.seqlen_k)
    assert positions(key_blocks_seen(mask, part)) == np.flatnonzero(dense[:, positions(part)].any((0, 1))).tolist()
