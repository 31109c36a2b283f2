"""FlashAttention-3's forward with a page table, emulated in float64 on the CPU with the library's checks.

Sources: `mha_fwd` and `get_pagedkv_tma` of hopper/flash_api.cpp, hopper/tile_size.h and hopper/paged_kv.h. Memory is
read and written by addresses, as the kernel does it. An address outside the tensor's storage fails.
"""

import torch


class PagedOperator:
    """The operators' namespace. `calls` keeps the keyword arguments of every call, and its q, k and v."""

    def __init__(self):
        self.calls = []

    def fwd(self, q, k, v, **options):
        self.calls.append({"q": q, "k": k, "v": v, **options})
        return _forward(q, k, v, **options)


def _forward(
    q,
    k,
    v,
    *,
    out,
    cu_seqlens_q,
    seqused_k,
    max_seqlen_q,
    page_table,
    softmax_scale,
    num_splits,
    seqused_q=None,
):
    (total, heads, dim), (_, page_size, heads_kv, _) = q.shape, k.shape
    batch = len(cu_seqlens_q) - 1
    _check(q, k, v, out, page_table, cu_seqlens_q, seqused_k, seqused_q)
    assert num_splits == 1
    group = heads // heads_kv
    assert not _loads_whole_pages(dim, page_size, max_seqlen_q * group), "whole pages may end past the storage"
    lse = torch.full((heads, total), torch.nan, dtype=torch.float32)
    for sequence in range(batch):
        first = int(cu_seqlens_q[sequence])
        length = int(cu_seqlens_q[sequence + 1]) - first if seqused_q is None else int(seqused_q[sequence])
        assert 0 <= length <= max_seqlen_q
        used = int(seqused_k[sequence])
        assert 0 <= used <= page_table.shape[1] * page_size
        places = torch.arange(used)
        pages = page_table[sequence, places // page_size].long()
        for head in range(heads):
            at = [first * q.stride(0) + head * q.stride(1), q.stride(0)]
            rows = _memory(q)[_places(q, at[0], torch.arange(length), at[1])]
            keys, values = (
                _memory(x)[_places(x, head // group * x.stride(2), pages, x.stride(0), places % page_size, x.stride(1))]
                for x in (k, v)
            )
            result, sums = _attend(rows.double(), keys.double(), values.double(), softmax_scale)
            start = first * out.stride(0) + head * out.stride(1)
            _memory(out)[_places(out, start, torch.arange(length), out.stride(0))] = result.to(out.dtype)
            lse.view(-1)[head * total + first + torch.arange(length)] = sums.float()
    return out, lse, torch.empty(0), torch.empty(0)


def _check(q, k, v, out, page_table, *others):
    batch = len(others[0]) - 1
    assert q.stride(2) == k.stride(3) == v.stride(3) == out.stride(2) == 1
    assert k.shape == v.shape
    assert k.shape[0] > 0, "a descriptor has no size 0"
    assert out.shape == q.shape
    assert out.dtype == q.dtype == k.dtype == v.dtype
    assert q.shape[1] % k.shape[2] == 0
    assert q.shape[2] % 8 == 0
    assert page_table.dtype == torch.int32
    assert page_table.stride(1) == 1
    assert page_table.shape[0] == batch
    for x in others:
        assert x is None or (x.dtype == torch.int32 and x.is_contiguous())
        assert x is None or len(x) in (batch, batch + 1)
    for x in (q, k, v, out):
        assert x.data_ptr() % 16 == 0
        assert all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:-1])


def _loads_whole_pages(dim, page_size, rows):
    """Whether pages are loaded by descriptors, in whole tiles."""
    tiles = {64: (192, 192), 96: (192, 144), 128: (128, 176), 192: (128, 112), 256: (128, 80)}
    height, width = next(tile for most, tile in tiles.items() if dim <= most)
    return page_size % width == 0 and rows > height


def _memory(x):
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def _places(x, start, rows, stride, more=None, step=0):
    """Places in memory of each row's elements: int64 [rows, head_dim]."""
    begin = x.storage_offset() + start + rows * stride
    begin = begin if more is None else begin + more * step
    return begin[:, None] + torch.arange(x.shape[-1])


def _attend(q, k, v, scale):
    if not len(k):
        return torch.zeros_like(q), torch.full((len(q),), -torch.inf)
    scores = q @ k.T * scale
    return scores.softmax(-1) @ v, scores.logsumexp(-1)
