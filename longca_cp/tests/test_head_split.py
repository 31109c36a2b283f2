import pytest

from longca.errors import UnsupportedError
from longca_cp.head_split import split_heads

from .cases import problem, static_mask


def heads(heads_q, heads_kv, ranks):
    return split_heads(problem(static_mask("causal"), heads_q, heads_kv), ranks, "ulysses")


def test_kv_heads_are_split_while_there_are_enough():
    assert heads(8, 4, 2) == (((0, 4), (0, 2)), ((4, 8), (2, 4)))
    assert heads(6, 6, 3) == (((0, 2), (0, 2)), ((2, 4), (2, 4)), ((4, 6), (4, 6)))


def test_kv_heads_are_replicated_where_there_are_fewer_than_ranks():
    assert heads(8, 2, 4) == (((0, 2), (0, 1)), ((2, 4), (0, 1)), ((4, 6), (1, 2)), ((6, 8), (1, 2)))
    assert heads(4, 1, 2) == (((0, 2), (0, 1)), ((2, 4), (0, 1)))


@pytest.mark.parametrize("ranks", range(1, 13))
@pytest.mark.parametrize(("heads_q", "heads_kv"), [(12, 12), (12, 6), (12, 4), (12, 3), (12, 1), (8, 2), (64, 8)])
def test_a_rank_is_a_smaller_problem_of_the_same_grouping(heads_q, heads_kv, ranks):
    group = heads_q // heads_kv
    try:
        parts = heads(heads_q, heads_kv, ranks)
    except UnsupportedError:
        assert heads_q % ranks or (heads_kv % ranks and ranks % heads_kv)
        return
    assert [head for (q0, q1), _ in parts for head in range(q0, q1)] == list(range(heads_q))
    for (q0, q1), (kv0, kv1) in parts:
        local_group = (q1 - q0) // (kv1 - kv0)
        assert (q1 - q0) % (kv1 - kv0) == 0
        assert [kv0 + local // local_group for local in range(q1 - q0)] == [head // group for head in range(q0, q1)]
    assert len({(q1 - q0, kv1 - kv0) for (q0, q1), (kv0, kv1) in parts}) == 1, "one exchange moves as much of each"


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UnsupportedError, match=r"8 query heads do not divide among the 3 ranks of axis ulysses\. "):
        heads(8, 2, 3)
    with pytest.raises(UnsupportedError, match=r"Give it a size of 1, 2, 4, 8; more ranks can go to a ring"):
        heads(8, 2, 16)
    with pytest.raises(UnsupportedError, match=r"would have 4 of 12 query heads, but 3 share a KV head, .* 4 KV heads"):
        heads(12, 4, 3)
