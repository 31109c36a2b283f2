"""Transfers: buffers, bytes, the order of rows and the heads of ranks."""

import numpy as np
import pytest
import torch

from longca_cp.exchange import Order
from longca_cp.heads import each, put_together, take_apart

from .test_strategies import sizes

HERE = torch.device("cpu")


# Bytes: float32, 96 tokens on 4 ranks (24 each), head dim 8, heads 8:4.
TOKEN = 8 * 4  # bytes a head of a token
LOCAL = 24


def sent_by(world, strategy, mesh, kind="full", placement="contiguous", **factors):
    case = (kind, 96, tuple(factors.items()), placement, (8, 4))
    found = world.run("sent", strategy, tuple(mesh.items()), *case)
    assert all(each == found[0] for each in found), "all ranks send as much here"
    return found[0]


@sizes(4)
def test_bytes_that_ranks_send(world):
    pair = 2 * LOCAL * 4 * TOKEN  # keys and values of a rank
    # Of its 24 tokens it sends three quarters of q, k, v; of the 96 tokens of its 2 heads, out and lse to the others.
    forward, backward = sent_by(world, "ulysses", {"ulysses": 4})
    assert forward == {"all_to_all": LOCAL * 16 * TOKEN * 3 // 4 + 3 * LOCAL * 2 * (TOKEN + 4)}
    # dout one way, dq, dk and dv the other: no kept tensor goes again.
    assert backward == {"all_to_all": LOCAL * 8 * TOKEN * 3 // 4 + 3 * LOCAL * 4 * TOKEN}
    # float32 here, and so are their sums, which go all the way round.
    assert sent_by(world, "ring_p2p", {"ring": 4}) == ({"p2p": 3 * pair}, {"p2p": 3 * pair + 4 * pair})
    forward, backward = sent_by(world, "ring_all_gather", {"ring": 4})
    assert (forward, backward) == ({"all_gather": 3 * pair}, {"all_gather": 3 * pair, "reduce_scatter": 3 * pair})
    nothing = sent_by(world, "ring_all_gather", {"ring": 4}, "full_document", documents=(24,) * 4)
    assert nothing == ({"all_to_all": 0}, {"all_to_all": 0})
    forward, backward = sent_by(world, "loongtrain", {"outer": 2, "inner": 2, "heads": 1})
    assert forward["p2p"] == 2 * pair + pair  # one hop in each of two windows, and one between them
    # The sums of each window go all the way round its ring, and those of windows round theirs.
    assert backward["p2p"] == 3 * pair + 2 * 2 * pair + 2 * pair


# Order


def test_rows_are_put_in_order_and_back():
    arriving = np.array([4, 0, -1, 3, 1, -1, 2])
    order = Order(arriving, np.array([0, 2, 3]), HERE)
    rows = torch.tensor(arriving)[:, None].float()
    assert order.ascending(rows).ravel().tolist() == [0, 2, 3]
    back = order.arriving(torch.tensor([[10.0], [12.0], [13.0]], dtype=torch.float64))
    assert back.dtype is torch.float64
    assert back.ravel().tolist() == [0, 10, 0, 13, 0, 0, 12]


# Heads


@pytest.mark.parametrize(("heads", "ranks"), [(8, 4), (4, 4), (2, 4), (1, 3), (6, 1)])
def test_heads_are_taken_apart_and_put_together(heads, ranks):
    x = torch.randn(5, heads, 3)
    parts = take_apart(x, ranks)
    assert parts.shape == (ranks, 5, each(heads, ranks), 3)
    for rank in range(ranks):
        first = rank * heads // ranks
        assert torch.equal(parts[rank], x[:, first : first + each(heads, ranks)])
    into = torch.empty_like(x)
    put_together(parts, into, slice(0, each(heads, ranks)))
    copies = max(ranks // heads, 1)
    torch.testing.assert_close(into, x * copies)


def test_copies_of_a_head_are_summed_in_float32():
    parts = torch.full((4, 1, 1, 1), 1.0, dtype=torch.bfloat16)
    parts[0] = 256.0
    into = torch.empty(1, 1, 1)
    put_together(parts, into, slice(0, 1))
    assert into.item() == 259
