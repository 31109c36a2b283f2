"""The loops of the three kernels. A program has one block of rows, and its walk brings the columns step by step.

Rows are queries and columns are keys in the forward and for dq. It is the other way round for dk and dv.

A walk is a tuple of tables and constants. Its state is a tuple that changes from step to step. A plugin says with four
Triton functions which columns a program visits, and which of its pairs are hidden:

- `FIRST(walk)` returns the state at the first step.
- `COLUMNS(walk, state, step)` returns the first column of a step, all of its columns [BLOCK], and one past the last
  column that it may use.
- `HIDE(walk, state, step, columns, values, other)` returns the values [rows, columns], with `other` at hidden pairs.
- `ADVANCE(walk, state)` returns the next state.

The three loops share their arguments. Blocks of the program's rows are [rows, HEAD_DIM], and `exponent` and `delta`
are the rows' vectors. The sources k, v, q and dout are [tokens, heads, HEAD_DIM], and descriptors if TMA is set. The
sources `exponents` and `deltas` are float32 [Hq, padded]. An offset is that of the KV head. `length` counts tokens of
the sources. `scale` is the factor on the scores.

Make the walk in the call itself: Triton turns the constants of a tuple that has a name into values.

The compiler inlines the four functions, so each kernel is compiled as if it had a loop of its own. No program adds to
another program's results, so equal inputs give equal bits.

Source: FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2).
"""

import triton
import triton.language as tl

from longca_triton.softmax import LOG2E, LOWEST, weigh
from longca_triton.tiles import head_offset, load_tokens, load_vector

__all__ = ["attend_columns", "gather_dkdv_columns", "gather_dq_columns", "hide_nothing", "keep_nothing"]


@triton.jit
def hide_nothing(walk, state, step, columns, values, other):
    """The values as they are: a `HIDE` of walks whose pairs are all visible."""
    return values


@triton.jit
def keep_nothing(kept, walk, step, dscores):
    """A `KEEP` of programs that store no gradients of scores."""


@triton.jit
def attend_columns(
    q_block,
    k,
    v,
    k_offset,
    v_offset,
    stride_kt,
    stride_vt,
    length,
    scale,
    walk,
    num_steps,
    FIRST: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDE: tl.constexpr,
    ADVANCE: tl.constexpr,
    TMA: tl.constexpr,
):
    """Attention of one block of queries to the keys of its walk.

    Returns:
        The arguments of `softmax.normalize`: peak [rows], total [rows] and the weighted values [rows, HEAD_DIM].
    """
    factor = scale * LOG2E
    peak = tl.full([q_block.shape[0]], LOWEST, tl.float32)
    total = tl.zeros([q_block.shape[0]], tl.float32)
    weighted = tl.zeros(q_block.shape, tl.float32)
    state = FIRST(walk)
    for step in range(num_steps):
        column, keys, _ = COLUMNS(walk, state, step)
        k_block = load_tokens(k, column, keys, k_offset, stride_kt, length, q_block.shape[1], TMA)
        scores = tl.dot(q_block, tl.trans(k_block))
        scores = HIDE(walk, state, step, keys, scores, float("-inf"))
        weights, peak, total, weighted = weigh(scores, factor, peak, total, weighted)
        v_block = load_tokens(v, column, keys, v_offset, stride_vt, length, q_block.shape[1], TMA)
        weighted = tl.dot(weights.to(v_block.dtype), v_block, weighted)
        state = ADVANCE(walk, state)
    return peak, total, weighted


@triton.jit
def gather_dq_columns(
    q_block,
    dout_block,
    exponent,
    delta,
    k,
    v,
    k_offset,
    v_offset,
    stride_kt,
    stride_vt,
    length,
    scale,
    walk,
    num_steps,
    FIRST: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDE: tl.constexpr,
    ADVANCE: tl.constexpr,
    TMA: tl.constexpr,
):
    """dq of one block of queries, from the keys of its walk: float32 [rows, HEAD_DIM], the scale not yet applied.

    A weight is computed again as 2^(score·log₂e − exponent). The log-sum-exp may be that of a larger softmax.
    """
    factor = scale * LOG2E
    dq_sum = tl.zeros(q_block.shape, tl.float32)
    state = FIRST(walk)
    for step in range(num_steps):
        column, keys, _ = COLUMNS(walk, state, step)
        k_block = load_tokens(k, column, keys, k_offset, stride_kt, length, q_block.shape[1], TMA)
        v_block = load_tokens(v, column, keys, v_offset, stride_vt, length, q_block.shape[1], TMA)
        scores = tl.dot(q_block, tl.trans(k_block))
        weights = tl.exp2(scores * factor - exponent[:, None])
        weights = HIDE(walk, state, step, keys, weights, 0.0)
        dweights = tl.dot(dout_block, tl.trans(v_block))
        dscores = weights * (dweights - delta[:, None])
        dq_sum = tl.dot(dscores.to(k_block.dtype), k_block, dq_sum)
        state = ADVANCE(walk, state)
    return dq_sum


@triton.jit
def gather_dkdv_columns(
    k_block,
    v_block,
    dk_sum,
    dv_sum,
    q,
    dout,
    exponents,
    deltas,
    head,
    stride_qt,
    stride_qh,
    stride_gt,
    stride_gh,
    length,
    padded,
    scale,
    walk,
    num_steps,
    FIRST: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDE: tl.constexpr,
    ADVANCE: tl.constexpr,
    BOUNDED: tl.constexpr,
    TMA: tl.constexpr,
    VECTORS: tl.constexpr,
    kept,
    KEEP: tl.constexpr,
):
    """Adds to dk and dv of one block of keys, from the queries of its walk under one query head after another.

    Scores are keys by queries. Transposed like this, the weights are the left operand of dk and dv, and stay in
    registers. `ADVANCE` returns the next state, and 1 if the next step belongs to the next head, else 0.

    Args:
        dk_sum: The sums so far: float32 [rows, HEAD_DIM]. The scale is not yet applied to dk.
        head: The query head of the first step.
        num_steps: Steps of the walk under all heads together.
        BOUNDED: Whether a step has queries past its last. Their exponents are +∞, so their weights are 0.
        VECTORS: Whether exponents and deltas are descriptors.
        kept: The first argument of KEEP.
        KEEP: `KEEP(kept, walk, step, dscores)` may store the gradients of a step's scores [rows, columns].
    """
    factor = scale * LOG2E
    state = FIRST(walk)
    for step in range(num_steps):
        column, queries, stop = COLUMNS(walk, state, step)
        q_offset = head_offset(head, stride_qh, TMA)
        dout_offset = head_offset(head, stride_gh, TMA)
        q_block = load_tokens(q, column, queries, q_offset, stride_qt, length, k_block.shape[1], TMA)
        dout_block = load_tokens(dout, column, queries, dout_offset, stride_gt, length, k_block.shape[1], TMA)
        exponent = load_vector(exponents, head, column, queries, padded, stop, float("inf"), BOUNDED, VECTORS)
        delta = load_vector(deltas, head, column, queries, padded, stop, 0.0, BOUNDED, VECTORS)
        scores = tl.dot(k_block, tl.trans(q_block))
        weights = tl.exp2(scores * factor - exponent[None, :])
        weights = HIDE(walk, state, step, queries, weights, 0.0)
        dv_sum = tl.dot(weights.to(dout_block.dtype), dout_block, dv_sum)
        dweights = tl.dot(v_block, tl.trans(dout_block))
        dscores = (weights * (dweights - delta[None, :])).to(q_block.dtype)
        dk_sum = tl.dot(dscores, q_block, dk_sum)
        KEEP(kept, walk, step, dscores)
        state, is_last = ADVANCE(walk, state)
        head += is_last
    return dk_sum, dv_sum
