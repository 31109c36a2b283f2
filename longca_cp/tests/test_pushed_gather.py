"""Runs of rows, their places in windows and the sum of their gradients, against lists of tokens."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca_cp import pushed_gather, runs
from longca_cp.ranges import union
from longca_cp.runs import Arrangement, Pushes, pieces

HERE = torch.device("cpu")
RANKS = 3


def ranges(tokens):
    tokens = np.array(sorted(tokens), np.int64)
    return union(tokens, tokens + 1)


@st.composite
def shards_and_needs(draw):
    """The owner of each of some tokens as shards, and the tokens that each rank needs."""
    owners = draw(st.lists(st.integers(0, RANKS - 1), min_size=1, max_size=24))
    shards = [[token for token, owner in enumerate(owners) if owner == rank] for rank in range(RANKS)]
    needs = [sorted(draw(st.sets(st.integers(0, len(owners) - 1)))) for _ in range(RANKS)]
    return shards, needs


def rows_of(tokens):
    """A row for each token, whose two values are the token."""
    return torch.tensor(tokens, dtype=torch.float64)[:, None, None].expand(-1, 2, 1).clone()


@given(shards_and_needs(), st.integers(1, 4))
def test_every_row_comes_from_its_owner_to_its_place(case, most_runs):
    shards, needs = case
    with mock.patch.object(runs, "MOST_RUNS", most_runs):
        for tokens in needs:
            found = pieces([ranges(shard) for shard in shards], ranges(tokens))
            assert (found.length > 0).all()
            arranged, slot = Arrangement(found, RANKS), torch.full((len(tokens), 2, 1), -1.0, dtype=torch.float64)
            for owner, shard in enumerate(shards):
                moves = list(Pushes(arranged.runs(owner), HERE)(slot, rows_of(shard)))
                assert len(moves) <= most_runs
                for into, source in moves:
                    into.copy_(source)
            order = arranged.order(HERE)
            assert torch.equal(slot if order is None else slot.index_select(0, order), rows_of(tokens))


@given(shards_and_needs(), st.integers(1, 4), st.integers(0, RANKS - 1))
def test_gradients_of_all_ranks_are_summed_at_the_owner(case, most_runs, me):
    shards, needs = case
    needed = [pieces([ranges(shard) for shard in shards], ranges(tokens)) for tokens in needs]
    others = np.array([np.bincount(each.owner, each.length, RANKS) for each in needed]).astype(np.int64).T
    others *= ~np.eye(RANKS, dtype=bool)
    # A rank's gradient of a token is the token plus a thousand times the rank's number, from 1.
    grads = [rows_of(tokens) + 1000 * (rank + 1) for rank, tokens in enumerate(needs)]
    slot = torch.full((int(others[me].sum()), 2, 1), -1.0, dtype=torch.float64)
    total, summed = torch.empty((len(shards[me]), 1), dtype=torch.float64), None
    with mock.patch.object(runs, "MOST_RUNS", most_runs):
        for rank in range(RANKS):
            axis = SimpleNamespace(index=rank, size=RANKS)
            back, mine = pushed_gather._ways_back(axis, needed, others, len(shards[rank]), HERE)
            for into, source in back[me](slot, grads[rank]) if rank != me else ():
                into.copy_(source)
            summed = mine if rank == me else summed
        summed.add([(grads[me] if rank == me else slot)[:, 0] for rank in range(RANKS)], total)
    wanted = [sum(token + 1000 * (rank + 1) for rank in range(RANKS) if token in needs[rank]) for token in shards[me]]
    assert total.ravel().tolist() == wanted


def test_a_sum_rounds_once():
    parts = [torch.tensor([[256.0]], dtype=torch.bfloat16), *(torch.ones(1, 1, dtype=torch.bfloat16) for _ in "abc")]
    into = torch.empty(1, 1, dtype=torch.bfloat16)
    pushed_gather._sum_into(into, parts, torch.float32)
    assert into.item() == 260  # 259 rounds to 260, and 256 + 1 to 256
