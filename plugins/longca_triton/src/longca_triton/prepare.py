"""The first launch of a backward: two numbers of each query, its exponent and its delta, from out and lse.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 2, line 4).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longca_triton.config import Configs
from longca_triton.descriptors import strides
from longca_triton.kernel import FlashPlan
from longca_triton.launching import launch_kernel
from longca_triton.softmax import deltas_of, exponents_of
from longca_triton.tiles import head_offset, load_rows

__all__ = ["launch_prepare", "padded_queries", "prepare"]

#: Elements of out, and of dout, that a program of `prepare` takes.
PREPARE_ELEMENTS = 8192


@triton.jit(do_not_specialize=["stride_lh", "stride_lt", "seqlen_q", "padded"])
def prepare(
    out,
    dout,
    lse,
    exponents,
    deltas,
    stride_ot,
    stride_oh,
    stride_gt,
    stride_gh,
    stride_lh,
    stride_lt,
    seqlen_q,
    padded,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK queries of one head.

    A weight is later computed as 2^(score·log₂e − exponent). Queries past the end get the exponent +∞, and so do
    queries whose lse is −∞. Their weights are 0.

    Args:
        out: [Tq, Hq, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        lse: float32 [Hq, Tq].
        exponents: lse·log₂e: float32 [Hq, padded], written.
        deltas: Σ dout·out: float32 [Hq, padded], written.
        padded: Queries, rounded up to a multiple of BLOCK.
    """
    head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK
    rows = row + tl.arange(0, BLOCK)
    out_block = load_rows(out, row, head_offset(head, stride_oh, False), stride_ot, seqlen_q, BLOCK, HEAD_DIM, False)
    dout_block = load_rows(dout, row, head_offset(head, stride_gh, False), stride_gt, seqlen_q, BLOCK, HEAD_DIM, False)
    delta = deltas_of(out_block, dout_block)
    where = lse + head_offset(head, stride_lh, False) + rows.to(tl.int64) * stride_lt
    sums = tl.load(where, mask=rows < seqlen_q, other=float("-inf"))
    target = head_offset(head, padded, False) + rows
    tl.store(exponents + target, exponents_of(sums))
    tl.store(deltas + target, delta)


def launch_prepare(dout: Tensor, out: Tensor, lse: Tensor, plan: FlashPlan) -> Tensor:
    """Writes each query's exponent and delta.

    Args:
        dout: Gradient of the output: [Tq, Hq, D], D a power of two.
        out: [Tq, Hq, D].
        lse: float32 [Hq, Tq].
        plan: The plan.

    Returns:
        Exponents and deltas: float32 [2, Hq, padded queries]. Past the last query they are +∞ and 0.
    """
    num_queries, heads, head_dim = out.shape
    padded = padded_queries(num_queries, head_dim, plan.configs)
    prepared = torch.empty((2, heads, padded), dtype=torch.float32, device=out.device)
    block = PREPARE_ELEMENTS // head_dim
    launch_kernel(
        prepare,
        (padded // block, heads),
        out,
        dout,
        lse,
        *prepared,
        *strides(out, dout),
        *lse.stride(),
        num_queries,
        padded,
        HEAD_DIM=head_dim,
        BLOCK=block,
        enable_fp_fusion=True,
    )
    return prepared


def padded_queries(queries: int, head_dim: int, configs: Configs) -> int:
    """Queries, rounded up to a whole block of every kernel that reads exponents and deltas, and of `prepare`."""
    multiple = max(PREPARE_ELEMENTS // head_dim, configs.dkdv.block_m, configs.dq.block_m)
    return -(-queries // multiple) * multiple
