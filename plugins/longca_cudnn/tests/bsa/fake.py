"""A fake of cudnn.block_sparse_attention 1.32 on Hopper that computes on the CPU. It refuses what the library refuses.

The forward returns NaN for a query that sees nothing, unless empty lists are announced.
"""

from __future__ import annotations

import torch

from ..attended import backward, forward


def block_sparse_attention_forward(
    q,
    k,
    v,
    index,
    count,
    sizes,
    nums,
    *,
    sparse_block_size,
    softmax_scale,
    layout,
    allow_empty_block_nums,
    pack_gqa,
):
    assert layout == "bshd"
    assert pack_gqa is False
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.shape[3] in (64, 96, 128)
    if sparse_block_size == 64:
        assert q.shape[1] % 64 == 0
        assert all(x.data_ptr() % 64 == 0 for x in (q, k, v))  # 128 on GPUs
    _check_aligned(q, k, v)
    seen = _seen(q, k, v, index, count, sizes, nums, sparse_block_size)
    assert allow_empty_block_nums or (nums > 0).all()
    out, lse = forward(q, k, v, seen, softmax_scale)
    return out.to(q.dtype), lse.float()


def block_sparse_attention_backward(
    do,
    q,
    k,
    v,
    out,
    lse,
    index,
    count,
    sizes,
    nums,
    *,
    sparse_block_size,
    softmax_scale,
    layout,
    dq_tensor,
    dk_tensor,
    dv_tensor,
):
    assert layout == "bshd"
    assert q.dtype == torch.bfloat16
    assert q.shape[2] == k.shape[2]
    assert q.shape[3] == 128
    assert do.shape == out.shape == q.shape
    assert (lse.shape, lse.dtype) == ((1, q.shape[2], q.shape[1]), torch.float32)
    _check_aligned(do, q, k, v, out, dq_tensor, dk_tensor, dv_tensor)
    seen = _seen(q, k, v, index, count, sizes, nums, sparse_block_size)
    grads = backward(do, q, k, v, out, lse, seen, softmax_scale)
    for buffer, grad, like in zip((dq_tensor, dk_tensor, dv_tensor), grads, (q, k, v), strict=True):
        assert (buffer.shape, buffer.dtype) == (like.shape, like.dtype)
        buffer.copy_(grad)
    return dq_tensor, dk_tensor, dv_tensor


def _check_aligned(*tensors):
    for x in tensors:
        assert x.dim() == 4
        assert x.stride(3) == 1
        assert x.data_ptr() % 16 == 0
        assert all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:3])


def _seen(q, k, v, index, count, sizes, nums, block):
    """The dense matrix of the lists: bool [Hq, Tq, Tk]."""
    assert k.shape == v.shape
    assert block in (64, 128)
    heads, queries, keys = q.shape[2], q.shape[1], k.shape[1]
    rows, columns = -(-queries // block), -(-keys // block)
    assert index.dtype == nums.dtype == torch.int32
    assert index.shape == (1, heads, rows, count)
    assert nums.shape == (1, heads, rows)
    assert (nums <= count).all()
    assert ((index >= 0) & (index < columns)).all()
    used = torch.arange(count) < nums[0, ..., None]
    kept = torch.zeros(heads, rows, columns + 1, dtype=torch.bool)
    kept.scatter_(-1, torch.where(used, index[0].long(), columns), True)
    assert torch.equal(kept[..., :-1].sum(-1, dtype=torch.int32), nums[0]), "a list has a tile twice"
    seen = kept[..., :-1].repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :queries, :keys]
    if sizes is not None:
        assert sizes.dtype == torch.int32
        assert sizes.shape == (columns,)
        place = torch.arange(keys)
        seen = seen & (place % block < sizes[place // block])
    return seen
