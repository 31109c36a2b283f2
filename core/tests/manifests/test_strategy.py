import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import RequestError
from longca.manifests import Layout


def holding(*shards):
    """A layout that computes nothing."""
    return Layout(((),) * len(shards), shards)


@st.composite
def layouts(draw):
    """Any tokens on any ranks: some ranks may hold none, and neighbours need not be joined."""
    tokens, ranks = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    bounds = sorted({0, tokens, *draw(st.lists(st.integers(0, tokens), max_size=8))})
    owners = [draw(st.integers(0, ranks - 1)) for _ in bounds[1:]]
    held = zip(bounds, bounds[1:], owners, strict=False)
    pieces = [(owner, (start, stop)) for start, stop, owner in held]
    return holding(*(tuple(pair for owner, pair in pieces if owner == rank) for rank in range(ranks)))


@given(layouts())
def test_a_tensor_taken_apart_is_whole_again(layout):
    x = torch.arange(layout.num_tokens * 2).reshape(-1, 2)
    shards = [layout.shard(x, rank) for rank in range(layout.world_size)]
    assert [len(shard) for shard in shards] == [layout.shard_size(rank) for rank in range(layout.world_size)]
    assert torch.equal(layout.unshard(shards), x)
    for rank, shard in enumerate(shards):
        positions = layout.positions(rank)
        assert positions.dtype == np.int64
        assert torch.equal(shard, x[torch.from_numpy(positions)])
        assert shard.is_contiguous()
        assert (np.diff(positions) > 0).all()


def test_gradients_go_through_both_ways():
    layout = holding(((0, 2), (5, 6)), (), ((2, 5),))
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 2, dtype=torch.float64)
    shards = [layout.shard(x, rank) for rank in range(3)]
    (layout.unshard(shards) * weight).sum().backward()
    assert torch.equal(x.grad, weight)


def test_tensors_of_other_lengths_are_refused():
    layout = holding(((0, 2),), ((2, 5),))
    with pytest.raises(RequestError, match="4 rows was to be sharded; this layout is of 5 tokens"):
        layout.shard(torch.zeros(4), 0)
    for wrong in ([3, 2], [2], [2, 3, 0]):
        with pytest.raises(RequestError, match=r"rows were given; this layout's are \[2, 3\]"):
            layout.unshard([torch.zeros(rows) for rows in wrong])


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([((0, 2),), ((3, 4),)], "token 2 is held by nobody"),
        ([((1, 2),)], "token 0 is held by nobody"),
        ([((0, 3),), ((2, 4),)], "token 2 is held twice"),
        ([((0, 2),), ((0, 2),)], "token 0 is held twice"),
        ([((2, 4), (0, 2))], r"the shard of rank 0 is \(\(2, 4\), \(0, 2\)\); give ascending"),
        ([((0, 2),), ((2, 2),)], "the shard of rank 1 is"),
    ],
)
def test_every_token_is_held_once(shards, message):
    with pytest.raises(RequestError, match=message):
        holding(*shards)


def test_layouts_are_values():
    one, other = (holding(((0, 2),), ((2, 5),)) for _ in range(2))
    assert one.num_tokens == 5, "what was asked before makes no difference"
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == other
    assert one != holding(((0, 3),), ((3, 5),))
