"""The softmax of a Triton kernel that sees its keys tile by tile, and the two numbers of each query in the backward.

Scores are powers of two: one factor has the scale and log₂e. The running maximum starts at LOWEST, a large negative
number, not at −∞. So rows that have seen nothing yet need no care: their weights are 2^(−∞) = 0, and no NaN arises. A
weight of the backward is 2^(score·factor − exponent). The exponent is the log-sum-exp in powers of two.

Source: FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2).
"""

import triton
import triton.language as tl

__all__ = ["LN2", "LOG2E", "LOWEST", "deltas_of", "exponents_of", "normalize", "weigh"]

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
LOWEST: tl.constexpr = tl.constexpr(-1.0e38)


@triton.jit
def weigh(scores, factor, peak, total, weighted):
    """The weights of one more tile, and the sums so far, made relative to the new maximum.

    Args:
        scores: float32 [rows, columns], −∞ where hidden.
        factor: The scale on scores times log₂e.
        peak: The largest score·factor so far, at first LOWEST: [rows].
        total: The sum of weights so far: [rows].
        weighted: The weighted sum of values so far: [rows, HEAD_DIM].

    Returns:
        The tile's weights [rows, columns], then peak and total with the tile, then weighted. The caller adds the
        product of weights and values to weighted.
    """
    new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
    weights = tl.exp2(scores * factor - new_peak[:, None])
    correction = tl.exp2(peak - new_peak)
    total = total * correction + tl.sum(weights, 1)
    weighted = weighted * correction[:, None]
    return weights, new_peak, total, weighted


@triton.jit
def normalize(peak, total, weighted):
    """Outputs [rows, HEAD_DIM] and log-sum-exps [rows] at the end: 0 and −∞ for rows that have seen nothing."""
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    weighted = weighted / total[:, None]
    sums = tl.where(is_empty, float("-inf"), peak * LN2 + tl.log(total))
    return weighted, sums


@triton.jit
def deltas_of(out_block, dout_block):
    """Σ dout·out of each row of two blocks [rows, HEAD_DIM]: float32 [rows]."""
    return tl.sum(out_block.to(tl.float32) * dout_block.to(tl.float32), 1)


@triton.jit
def exponents_of(lse):
    """Log-sum-exps in powers of two. A row that sees nothing has −∞, which becomes +∞ and makes every weight 0."""
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)
