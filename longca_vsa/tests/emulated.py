"""The libraries' functions, emulated in float64 on the CPU from their sources, with the libraries' arguments.

They check the arguments as the libraries do. Rows without a block, and tokens past the end of a sequence, have no
reliable results in the libraries. They give NaN or the like here.
"""

from __future__ import annotations

import math

import torch

BLOCK = 64


class FastVideo:
    """fastvideo-kernel's modules, by their names. `calls` keeps every call's tensors."""

    def __init__(self):
        self.calls = []

    def library(self, module):
        assert module in ("_C.fastvideo_kernel_ops", "triton_kernels.block_sparse_attn_triton")
        return self

    def block_sparse_fwd(self, q, k, v, columns, counts, sizes):
        self._take("fwd", q, k, v, columns, counts, sizes)
        assert all(x.is_contiguous() for x in (q, k, v))
        assert (counts >= 1).all(), "the first block is loaded before blocks are counted"
        out, lse = attend(q, k, v, visible(columns, counts, k.shape[2]) & real(sizes))
        return [out.to(q.dtype), (lse * -math.sqrt(q.shape[3]))[..., None].float()]

    def block_sparse_bwd(self, q, k, v, out, sums, dout, columns, counts, sizes):
        self._take("bwd", k, q, q, columns, counts)
        assert sizes.shape == (k.shape[2] // BLOCK,)
        assert all(x.is_contiguous() for x in (q, k, v, out, sums, dout))
        assert sums.shape == (*q.shape[:3], 1)
        seen = visible(columns, counts, q.shape[2]).mT & real(sizes)
        lse = sums[..., 0].double() / -math.sqrt(q.shape[3])
        return [grad.float() for grad in differentiate(dout, q, k, v, out, lse, seen)]

    def triton_block_sparse_attn_forward(self, q, k, v, columns, counts, sizes):
        self._take("triton fwd", q, k, v, columns, counts, sizes)
        assert all(x.stride(-1) == 1 for x in (q, k, v))
        out, lse = attend(q, k, v, visible(columns, counts, k.shape[2]) & real(sizes))
        empty = torch.empty_like(q)  # laid out as q is
        return empty.copy_(out), (lse / math.log(2)).float()

    def _take(self, name, q, k, v, columns, counts, sizes=None):
        heads, tokens = q.shape[1:3]
        assert all(x.dim() == 4 and x.shape[:2] == (1, heads) for x in (q, k, v))
        assert tokens % BLOCK == k.shape[2] % BLOCK == 0
        assert columns.dtype == counts.dtype == torch.int32
        assert columns.is_contiguous()
        assert counts.shape == columns.shape[:3] == (1, heads, tokens // BLOCK)
        if sizes is not None:
            assert sizes.dtype == torch.int32
            assert sizes.shape == (k.shape[2] // BLOCK,)
        self.calls.append((name, q, k, v))


class BlockSparseAttn:
    """The module block_sparse_attn_cuda. `calls` keeps every call's arguments."""

    def __init__(self):
        self.calls = []

    def fwd_block(self, q, k, v, cu_q, cu_k, masks, streaming, rows, *settings):
        scale, (streamed, softmax, generator) = self._settings(q, k, cu_q, cu_k, streaming, settings[:9], settings[9:])
        assert not streamed
        assert not softmax
        assert generator is None
        assert rows.shape == (1, int(masks.max()), -(-len(q) // 128), -(-len(k) // 128))
        out, lse = attend(*self._heads_first(q, k, v), self._visible(rows, masks, len(q), len(k)), scale, 0.0)
        lse = lse.masked_fill(lse == -torch.inf, torch.inf)
        return out[0].transpose(0, 1).to(q.dtype), lse.float(), None, None

    def bwd_block(self, dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, masks, streaming, columns, *settings):
        lengths, (zero, *others) = settings[:4], settings[4:]
        scale, (deterministic, generator, rng_state) = self._settings(
            q, k, cu_q, cu_k, streaming, (*lengths, *others[:5]), others[5:]
        )
        assert zero
        assert not deterministic
        assert generator is None
        assert rng_state.dtype == torch.int64
        assert lse.shape == (1, q.shape[1], len(q))
        assert lse.is_contiguous()
        assert (lse != -torch.inf).all(), "FlashAttention-2 has +∞ where a query sees nothing"
        seen = self._visible(columns, masks, len(k), len(q)).mT
        tensors = self._heads_first(dout, q, k, v, out)
        group = q.shape[1] // k.shape[1]
        grads = differentiate(*tensors, lse.double(), seen, scale)
        for buffer, grad, size in zip((dq, dk, dv), grads, (1, group, group), strict=True):
            buffer.copy_(grad[0].unflatten(0, (-1, size)).sum(1).transpose(0, 1))

    def _settings(self, q, k, cu_q, cu_k, streaming, common, rest):
        *lengths, dropout, scale, causal, left, right, block_q, block_k = common
        assert lengths == [len(q), len(k)]
        assert cu_q.tolist() == [0, len(q)]
        assert cu_k.tolist() == [0, len(k)]
        assert (dropout, causal, left, right, block_q, block_k) == (0.0, False, -1, -1, 128, 128)
        assert streaming.tolist() == [0] * (2 * q.shape[1])
        assert all(x.dtype == torch.int32 for x in (cu_q, cu_k, streaming))
        for x in (q, k):
            assert x.stride(2) == 1
            assert all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:2])
        self.calls.append((q, k))
        return scale, rest

    def _heads_first(self, *tensors):
        most = max(x.shape[1] for x in tensors)
        return [x.repeat_interleave(most // x.shape[1], 1).transpose(0, 1)[None] for x in tensors]

    def _visible(self, lists, masks, rows, columns):
        """[1, Hq, rows, columns] from descending lists followed by −1."""
        assert lists.dtype == masks.dtype == torch.int32
        assert lists.is_contiguous()
        assert (lists.diff(dim=-1) <= 0).all()
        kept = torch.zeros(*lists.shape[:3], lists.shape[3] + 1, dtype=torch.bool)
        kept.scatter_(-1, lists.long() % (lists.shape[3] + 1), True)
        each = kept[0, masks.long() - 1, :, :-1]
        return each.repeat_interleave(128, 1).repeat_interleave(128, 2)[None, :, :rows, :columns]


def visible(columns, counts, others):
    """[1, heads, tokens, others] from lists of blocks."""
    blocks = others // BLOCK
    listed = torch.arange(columns.shape[3]) < counts[..., None]
    assert (columns < blocks).all()
    kept = torch.zeros(*columns.shape[:3], blocks + 1, dtype=torch.bool)
    kept.scatter_(-1, torch.where(listed, columns.long(), blocks), True)
    return kept[..., :-1].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)


def real(sizes):
    """Which tokens of padded blocks there are."""
    return (torch.arange(BLOCK) < sizes[:, None]).flatten()


def attend(q, k, v, seen, scale=None, blind=torch.nan):
    """out and lse of [1, heads, tokens, D] in float64. `blind` is the output of queries that see nothing."""
    scores = (q.double() @ k.double().mT * (scale or q.shape[3] ** -0.5)).masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    nothing = ~seen.any(-1)
    weights = (scores - lse[..., None]).exp().masked_fill(nothing[..., None], blind)
    return weights @ v.double(), lse


def differentiate(dout, q, k, v, out, lse, seen, scale=None):
    """dq, dk and dv in float64, from any out and lse."""
    scale = scale or q.shape[3] ** -0.5
    q, k, v, dout, out = (x.double() for x in (q, k, v, dout, out))
    weights = (q @ k.mT * scale - lse[..., None]).exp().masked_fill(~seen, 0)
    delta = (dout * out).sum(-1, keepdim=True)
    dscores = weights * (dout @ v.mT - delta) * scale
    return dscores @ k, dscores.mT @ q, weights.mT @ dout
