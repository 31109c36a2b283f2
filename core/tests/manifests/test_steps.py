import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longca.manifests import Step
from longca.manifests.steps import Steps

RANGES = st.sampled_from((((0, 4),), ((4, 8),), ((0, 2), (6, 8)), ()))
HEADS = st.sampled_from((((0, 4), (0, 2)), ((2, 4), (1, 2))))
STEPS = st.builds(lambda q, k, heads: Step(q, k, *heads), RANGES, RANGES, HEADS)
LISTED = st.lists(st.lists(STEPS, max_size=4).map(tuple), min_size=1, max_size=5).map(tuple)


@given(LISTED)
def test_a_table_is_the_sequence_it_was_made_of(listed):
    steps = Steps.of(listed)
    assert tuple(steps) == tuple(listed)
    assert (steps[1:], steps[-1]) == (listed[1:], listed[-1])
    assert (steps == listed, listed == steps, hash(steps)) == (True, True, hash(Steps.of(listed)))
    assert steps.ranks.tolist() == [rank for rank, of_rank in enumerate(listed) for _ in of_rank]
    assert Steps.of(steps) is steps


@given(LISTED, LISTED)
def test_tables_are_equal_by_value(mine, theirs):
    assert (Steps.of(mine) == Steps.of(theirs)) is (mine == theirs)
    assert (Steps.of(mine) == theirs) is (mine == theirs)


def test_tables_of_other_parts_are_equal_where_their_steps_are():
    parts, heads = (((0, 4),), ((4, 8),)), (((0, 4), (0, 2)),)
    steps = Steps.even(parts, heads, [[0, 1, 0], [1, 0, 0]], 2)
    again = Steps.even(parts[::-1], heads, np.array([[1, 0, 0], [0, 1, 0]]), 2)
    assert steps == again
    assert steps != Steps.even(parts, heads, [[0, 0, 0], [1, 0, 0]], 2)
    assert steps != 3
