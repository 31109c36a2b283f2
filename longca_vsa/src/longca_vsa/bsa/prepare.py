"""The backward's first kernel: what each query needs of out and lse.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 2, line 4).
"""

import triton
import triton.language as tl

from longca_triton.softmax import deltas_of, exponents_of
from longca_vsa.bsa.tiles import load_packed

__all__ = ["prepare"]


@triton.jit(do_not_specialize=["stride_lh", "stride_lt", "seqlen_q", "padded_q"])
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
    padded_q,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK queries of one head.

    A weight is recomputed as 2^(score·log₂e − exponent), whatever keys the log-sum-exp is over. Queries past the end,
    and those whose lse is −∞, get the exponent +∞, which makes every weight 0.

    Args:
        out: [Tq, Hq, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        lse: float32 [Hq, Tq].
        exponents: lse·log₂e: float32 [Hq, padded_q], written.
        deltas: Σ dout·out: float32 [Hq, padded_q], written.
        padded_q: Queries, rounded up to a multiple of BLOCK.
    """
    head = tl.program_id(1)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    heads = head + tl.zeros([BLOCK], tl.int32)
    inside = tokens < seqlen_q
    out_block = load_packed(out, tokens, heads, inside, stride_ot, stride_oh, HEAD_DIM)
    dout_block = load_packed(dout, tokens, heads, inside, stride_gt, stride_gh, HEAD_DIM)
    delta = deltas_of(out_block, dout_block)
    where = lse + head.to(tl.int64) * stride_lh + tokens.to(tl.int64) * stride_lt
    sums = tl.load(where, mask=inside, other=float("-inf"))
    exponent = exponents_of(sums)
    target = head.to(tl.int64) * padded_q + tokens
    tl.store(exponents + target, exponent)
    tl.store(deltas + target, delta)
