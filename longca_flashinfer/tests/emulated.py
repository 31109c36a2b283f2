"""FlashInfer's wrapper, emulated in float64 on the CPU: the lists of its plan, and attention over them."""

from __future__ import annotations

import math
from typing import ClassVar

import torch


class VariableBlockSparseAttentionWrapper:
    """Keeps the fields of the real wrapper under the same names. It refuses problems that the real one gets wrong."""

    compiled: ClassVar[set[tuple[object, ...]]] = set()
    made: ClassVar[list[VariableBlockSparseAttentionWrapper]] = []

    def __init__(self, workspace, backend="auto"):
        assert workspace.dtype == torch.uint8
        self.backend, self.workspace = backend, workspace
        self._int_workspace_buffer = torch.empty(8 * 2**20, dtype=torch.uint8)
        self._kv_lens_buffer = torch.empty(32768, dtype=torch.int32)
        self.made.append(self)

    def reset_workspace_buffer(self, workspace, schedule):
        self.workspace, self._int_workspace_buffer = workspace, schedule

    def plan(self, kept, rows, columns, heads_q, heads_kv, head_dim, *, sm_scale, logits_soft_cap, q_data_type):
        assert kept.dtype == torch.bool
        assert rows.dtype == columns.dtype == torch.int32
        assert kept.shape == (heads_kv, rows.shape[1], columns.shape[1])
        assert rows.shape[0] == columns.shape[0] == heads_kv
        assert kept.any(-1).all(), "a request without pages"
        self.heads, self.scale, self.dtype = (heads_q, heads_kv, head_dim), sm_scale, q_data_type
        self.cap, about = logits_soft_cap or 0.0, (0, False, bool(logits_soft_cap), False)
        module = (self.backend, *[q_data_type] * 3, torch.int32, head_dim, head_dim, *about)
        assert module in self.compiled, "it is to be compiled before, and timed"
        first = columns.cumsum(1) - columns + torch.arange(heads_kv)[:, None] * columns.sum(1, keepdim=True)
        pages = [
            torch.cat([torch.arange(first[h, c], first[h, c] + columns[h, c]) for c in kept[h, r].nonzero()[:, 0]])
            for h in range(heads_kv)
            for r in range(rows.shape[1])
        ]
        lengths = torch.tensor([len(found) for found in pages], dtype=torch.int32)
        self._kv_lens_buffer[: len(lengths)].copy_(lengths)  # like the real one, this fails if the buffer is too short
        self._qo_indptr = self._bounds(rows.flatten())
        self._paged_kv_indptr_buf = self._bounds(lengths)
        self._paged_kv_indices_buf = torch.cat(pages).int()
        self._paged_kv_last_page_len = torch.ones(len(pages), dtype=torch.int32)

    def run(self, q, k, v, return_lse):
        assert return_lse
        heads_q, heads_kv, dim = self.heads
        assert q.shape[::2] == (heads_q, dim)
        assert k.shape[::2] == v.shape[::2] == (heads_kv, dim)
        assert q.dtype == k.dtype == v.dtype == self.dtype
        group = heads_q // heads_kv
        packed = q.double().unflatten(0, (heads_kv, group)).transpose(1, 2).flatten(0, 1)  # [Hkv · Tq, group, D]
        keys, values = (x.double().flatten(0, 1) for x in (k, v))
        out, sums = torch.empty_like(packed), torch.empty(packed.shape[:2], dtype=torch.float64)
        bounds = zip(self._qo_indptr.unfold(0, 2, 1), self._paged_kv_indptr_buf.unfold(0, 2, 1), strict=True)
        for (start, stop), (first, last) in bounds:
            pages = self._paged_kv_indices_buf[first:last].long()
            scores = packed[start:stop] @ keys[pages].T * self.scale
            scores = self.cap * (scores / self.cap).tanh() if self.cap > 0 else scores
            sums[start:stop] = scores.logsumexp(-1)
            out[start:stop] = scores.softmax(-1) @ values[pages]

        def heads_first(x):
            return x.unflatten(0, (heads_kv, -1)).transpose(1, 2).flatten(0, 1).contiguous()

        return heads_first(out).to(q.dtype), (heads_first(sums) / math.log(2)).float()

    @staticmethod
    def _bounds(lengths):
        return torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)])


def get_batch_prefill_module(backend, *args):
    """The module that the wrapper asks for when it plans. Equal arguments are compiled once."""
    VariableBlockSparseAttentionWrapper.compiled.add((backend, *args))
