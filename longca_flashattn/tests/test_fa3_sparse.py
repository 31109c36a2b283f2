"""fa3_sparse on an emulated operator: its pages, its views and its results."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longca import Device, Problem
from longca.masks import BlockSparseMask
from longca_builtin.naive import Naive
from longca_flashattn import fa3_sparse
from longca_flashattn.fa3_sparse import FlashAttention3Sparse
from longca_flashattn.pages import joint_pages, make_pages, runs_jointly

from .paged_operator import PagedOperator

CPU = torch.device("cpu")
UNEQUAL = [0, 16, 48, 160, 176, 320]


def blocks(seqlen_q, seqlen_k=None, *, q=64, k=None, heads=2, kept=0.5, seed=0):
    """A random mask in which a row of the first head keeps nothing and another row keeps all."""
    bounds_q, bounds_k = _bounds(seqlen_q, q), _bounds(seqlen_k or seqlen_q, k or q)
    bitmap = np.random.default_rng(seed).random((heads, len(bounds_q) - 1, len(bounds_k) - 1)) < kept
    bitmap[0, 0], bitmap[0, -1] = False, True
    return BlockSparseMask(bitmap, bounds_q, bounds_k)


def _bounds(seqlen, block):
    return block if isinstance(block, list) else [*range(0, seqlen, block), seqlen]


MASKS = {
    "one mask for all heads": blocks(256, heads=1),
    "a mask for each KV head": blocks(256),
    "odd lengths": blocks(250, 333),
    "larger blocks of queries": blocks(384, 250, q=128, k=64),
    "smaller blocks of queries": blocks(128, 300, q=16, k=128),
    "blocks of 192": blocks(400, 390, q=192),
    "unequal blocks": blocks(320, 320, q=UNEQUAL, k=[0, 3, 128, 130, 320]),
    "fewer keys than a page": blocks(128, 40, k=64),
    "one key": blocks(64, 1),
    "nothing": BlockSparseMask(np.zeros((2, 2, 2), np.bool_), [0, 64, 100], [0, 64, 100]),
}
JOINT = {"a mask for each KV head", "larger blocks of queries", "smaller blocks of queries"}
JOINT |= {"fewer keys than a page", "one key"}


@pytest.fixture(autouse=True)
def operator(monkeypatch):
    """The emulated operator in place of the library's."""
    found = PagedOperator()
    monkeypatch.setattr(fa3_sparse, "operators", lambda: (found, "emulated"))
    return found


def problem(mask, heads=(8, 2), **options):
    asked = {"heads_q": heads[0], "heads_kv": heads[1], "head_dim": 16, "dtype": "bfloat16", "device": Device("cpu")}
    return Problem(**{"mask": mask, **asked, **options})


def tensors(asked, seed=0):
    random = torch.Generator().manual_seed(seed)
    mask, dim = asked.concrete_mask, asked.head_dim
    shapes = (
        (mask.seqlen_q, asked.heads_q, dim),
        (mask.seqlen_k, asked.num_heads_kv, dim),
        (mask.seqlen_k, asked.num_heads_kv, dim),
    )
    return [torch.randn(shape, generator=random).bfloat16() for shape in shapes]


def wanted(asked, q, k, v):
    asked = replace(asked, dtype="float64")
    return Naive().forward(q.double(), k.double(), v.double(), Naive().plan(asked))


def check(asked, q, k, v, **buffers):
    out, lse = FlashAttention3Sparse().forward(q, k, v, FlashAttention3Sparse().plan(asked), **buffers)
    expected_out, expected_lse = wanted(asked, q, k, v)
    torch.testing.assert_close(out.double(), expected_out, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)
    return out, lse


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_it_takes(name, operator):
    asked = problem(MASKS[name])
    check(asked, *tensors(asked))
    expected = 0 if name == "nothing" else 1 if name in JOINT or MASKS[name].heads == 1 else 2
    assert len(operator.calls) == expected
    assert runs_jointly(asked) == (name in JOINT)


bounds = st.lists(st.integers(1, 9), min_size=1, max_size=5).flatmap(
    lambda sizes: st.sampled_from([1, 4, 16, 64]).map(lambda unit: np.r_[0, np.cumsum(sizes)] * unit)
)


@settings(max_examples=60)
@given(st.data(), bounds, bounds, st.sampled_from([1, 2]))
def test_pages_show_the_mask(data, q_bounds, k_bounds, heads):
    short = data.draw(st.integers(0, int(k_bounds[-1] - k_bounds[-2]) - 1))
    k_bounds = np.r_[k_bounds[:-1], k_bounds[-1] - short]
    kept = data.draw(
        st.lists(st.booleans(), min_size=(n := heads * (len(q_bounds) - 1) * (len(k_bounds) - 1)), max_size=n)
    )
    mask = BlockSparseMask(np.reshape(kept, (heads, len(q_bounds) - 1, len(k_bounds) - 1)), q_bounds, k_bounds)
    pages = make_pages(mask, CPU)
    seen = np.zeros((heads, mask.seqlen_q, mask.seqlen_k), np.bool_)
    for head, row in np.ndindex(heads, len(q_bounds) - 1):
        keys = _keys(pages.table[head, row], pages.keys[head, row], pages.size)
        assert len(set(keys)) == len(keys)
        seen[head, q_bounds[row] : q_bounds[row + 1], keys] = True
    assert np.array_equal(seen, mask.dense().reshape(seen.shape))
    if heads > 1:
        _check_joint(mask, joint_pages(mask, pages, 6), pages.size, seen)


def _keys(table, used, size):
    places = torch.arange(int(used))
    return (table[places // size] * size + places % size).tolist()


def _check_joint(mask, joint, size, seen):
    units = mask.seqlen_q // joint.unit
    for row, (first, group) in enumerate(zip(joint.first[:-1].tolist(), joint.group.tolist(), strict=True)):
        token, head = divmod(first, 6)
        assert (token, head) == (row % units * joint.unit, row // units * group)
        places = torch.arange(int(joint.keys[row]))
        key, kv_head = torch.div(joint.table[row, places // size], 2, rounding_mode="floor"), row // units
        assert (joint.table[row, places // size] % 2 == kv_head).all()
        shown = np.zeros(mask.seqlen_k, np.bool_)
        shown[(key + places % size).numpy()] = True
        assert np.array_equal(seen[kv_head, token : token + joint.unit], np.tile(shown, (joint.unit, 1)))


@pytest.mark.parametrize("name", ["a mask for each KV head", "odd lengths"])
def test_strided_tensors_are_read_and_written_in_place(name, operator):
    asked = problem(MASKS[name])
    q, k, v = tensors(asked)
    packed = torch.cat([k, v, k], dim=1)
    out = torch.full((len(q), 12, 16), torch.nan, dtype=q.dtype)[:, :8]
    lse = torch.full((8, 2 * len(q)), torch.nan)[:, ::2]
    found = check(
        asked, q.transpose(0, 1).contiguous().transpose(0, 1), packed[:, :2], packed[:, 2:4], out=out, lse=lse
    )
    assert found == (out, lse)
    assert len(operator.calls) == 2, "only tensors whose tokens follow one another take one call"
    storages = {call[name].untyped_storage().data_ptr() for call in operator.calls for name in ("k", "v")}
    assert storages == {packed.untyped_storage().data_ptr()}
