import pytest

from longca.errors import MaskError
from longca.masks.bounds import check_bounds, common_blocks, kept_count, tile_spans, uniform_bounds


def test_the_last_uniform_block_is_cut_at_the_end():
    assert uniform_bounds(10, 4).tolist() == [0, 4, 8, 10]
    assert uniform_bounds(8, 4).tolist() == [0, 4, 8]


def test_spans_of_tiles():
    bounds = check_bounds([0, 3, 4, 9], "key")
    assert tile_spans(bounds, 4).reshape(-1, 2).tolist() == [[0, 2], [2, 3], [2, 3]]
    with pytest.raises(MaskError, match="at least 1"):
        tile_spans(bounds, 0)


def test_blocks_that_two_bounds_make_together():
    mine, theirs = common_blocks(check_bounds([0, 3, 9], "key"), check_bounds([0, 4, 9], "key"))
    assert mine.tolist() == [0, 1, 1]
    assert theirs.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("kept", "blocks", "count"), [(0.3, 10, 3), (0.29, 10, 2), (0.01, 10, 1), (1, 7, 7)])
def test_a_share_is_rounded_down_to_one_at_least(kept, blocks, count):
    assert kept_count(kept, blocks) == count
