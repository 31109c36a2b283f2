import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longca_cp.placement import place
from longca_cp.ranges import keys_seen, split, union

from .cases import positions, square_masks

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def joined(ranges):
    starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    return union(starts, stops)


@given(pairs)
def test_a_union_holds_each_token_once_in_as_few_ranges_as_there_can_be(ranges):
    found = joined(ranges)
    tokens = sorted(set(positions(ranges)))
    assert positions(found) == tokens
    assert len(found) == sum(token - 1 not in tokens for token in tokens)
    assert all(type(bound) is int for pair in found for bound in pair), "layouts are compared and written as JSON"


@given(pairs, st.integers(1, 7))
def test_pieces_follow_one_another_and_differ_by_a_token(ranges, parts):
    whole = joined(ranges)
    pieces = split(whole, parts)
    assert [token for piece in pieces for token in positions(piece)] == positions(whole)
    lengths = [len(positions(piece)) for piece in pieces]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1
    assert all(start < stop for piece in pieces for start, stop in piece)


@given(square_masks(), st.integers(1, 4))
def test_keys_seen_are_those_of_the_matrix(mask, ranks):
    for part in place("balanced", mask, ranks):
        assert positions(keys_seen(mask, part)) == np.flatnonzero(mask.dense()[positions(part)].any(axis=0)).tolist()
