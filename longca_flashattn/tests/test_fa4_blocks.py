"""The lists and bits that fa4 passes to its kernels for block-sparse masks show exactly the mask of every head."""

import numpy as np
import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask, Form
from longca_flashattn import fa4_blocks
from longca_flashattn.fa4_blocks import blocks_backward, blocks_forward, plan_blocks

HEADS = (4, 2)


def uniform(block, heads, seqlen=203):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.4, heads=heads, seed=block + heads)


def variable(heads):
    bounds = (0, 3, 64, 65, 130, 203)
    return masks.build("variable_block_sparse", 203, boundaries=bounds, kept=0.4, heads=heads, seed=heads)


MASKS = {
    **{f"blocks of {block}, a mask a KV head": uniform(block, 2) for block in (16, 32, 48, 64, 128, 256)},
    "blocks of 64, shared": uniform(64, 1),
    "blocks of 128, a mask a query head": uniform(128, 4),
    "blocks of 16, a mask a query head": uniform(16, 4),
    "variable, shared": variable(1),
    "variable, a mask a KV head": variable(2),
    "more keys": BlockSparseMask(np.eye(3, 9, dtype=np.bool_), range(0, 181, 60), range(0, 271, 30)),
    "more queries": BlockSparseMask(np.eye(9, 3, dtype=np.bool_), range(0, 145, 16), range(0, 49, 16)),
    "nothing": BlockSparseMask(np.zeros((2, 2, 2), np.bool_), (0, 128, 203), (0, 128, 203)),
}


def problem(mask, head_dim=128, direction="backward", dtype="bfloat16"):
    return Problem(
        mask=mask,
        heads_q=HEADS[0],
        heads_kv=HEADS[1],
        head_dim=head_dim,
        dtype=dtype,
        device=Device("cpu"),
        direction=direction,
    )


def tensors(asked):
    """q, k and v."""
    mask, dim = asked.mask, asked.head_dim
    shapes = (mask.seqlen_q, HEADS[0], dim), (mask.seqlen_k, HEADS[1], dim), (mask.seqlen_k, HEADS[1], dim)
    return [torch.zeros(shape, dtype=getattr(torch, asked.dtype)) for shape in shapes]


def dense(mask):
    """[query heads, queries, keys]."""
    visible = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k)
    return visible.repeat(HEADS[0] // mask.heads, axis=0)


class Kernel:
    """An emulated kernel that records the tiles it visits and the pairs that are visible in them."""

    def __init__(self, ask, shape, *, by_key):
        self._ask, self._by_key = ask, by_key
        self.shape, self.seen = shape, None

    def __call__(self, *tensors, mask_mod=None, aux_scalars=None, block_sparse_tensors=None, **_others):
        lists = block_sparse_tensors
        heads = lists.full_block_cnt.shape[1]
        assert heads in (1, self.shape[0])
        assert {len(x.shape) for x in (lists.mask_block_cnt, lists.full_block_cnt)} == {3}
        size = lists.block_size
        self.seen = np.zeros((self.shape[0], *(length + 256 for length in self.shape[1:])), np.bool_)
        for head, row in np.ndindex(self.shape[0], lists.full_block_cnt.shape[2]):
            for tile in self._tiles(lists.full_block_cnt, lists.full_block_idx, head, row, size):
                self.seen[head][tile] = True
            for tile in self._tiles(lists.mask_block_cnt, lists.mask_block_idx, head, row, size):
                first = tile[0].start, tile[1].start
                assert not self.seen[head][tile].any()
                self.seen[head][tile] = self._ask(mask_mod, aux_scalars, head, *first, size, by_key=self._by_key)
        self.seen = self.seen[:, : self.shape[1], : self.shape[2]]  # the kernels cut off everything past the ends
        return tensors[:3]

    def _tiles(self, counts, columns, head, row, size):
        head = min(head, counts.shape[1] - 1)
        listed = columns[0, head, row, : counts[0, head, row]].tolist()
        assert listed == sorted(set(listed)), "ascending: the kernel begins with the last, ragged one"
        for other in listed:
            query, key = (other, row) if self._by_key else (row, other)
            yield slice(query * size[0], (query + 1) * size[0]), slice(key * size[1], (key + 1) * size[1])


@pytest.mark.parametrize("name", MASKS)
def test_forward(traced, asked_as_in_the_kernel, monkeypatch, name):
    mask = MASKS[name]
    asked = problem(mask, direction="forward")
    plan = plan_blocks(asked, "test")
    assert plan.form is Form.BLOCK_SPARSE
    assert plan.by_key is None
    kernel = Kernel(asked_as_in_the_kernel, dense(mask).shape, by_key=False)
    monkeypatch.setattr(fa4_blocks, "flash_forward", kernel)
    traced("fragment_mod")
    blocks_forward(*tensors(asked), plan, None, None)
    assert np.array_equal(kernel.seen, dense(mask))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_backward(traced, asked_as_in_the_kernel, monkeypatch, name, head_dim):
    mask = MASKS[name]
    asked = problem(mask, head_dim)
    plan = plan_blocks(asked, "test")
    kernel = Kernel(asked_as_in_the_kernel, dense(mask).shape, by_key=True)
    monkeypatch.setattr(fa4_blocks, "flash_backward", kernel)
    traced("fragment_mod")
    q, k, v = tensors(asked)
    lse = torch.zeros(HEADS[0], mask.seqlen_q)
    blocks_backward(q, q, k, v, q, lse, plan, (None, None, None))
    assert np.array_equal(kernel.seen, dense(mask))
