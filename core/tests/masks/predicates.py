"""The visibility rule of each pattern, cell by cell: the test oracle.

Nothing here uses slices, intervals or numpy. Every conversion is compared with these functions.
"""

from bisect import bisect_right
from itertools import accumulate

import numpy as np


def dense(pattern, seqlen_q, seqlen_k, factors):
    """The boolean matrix [seqlen_q, seqlen_k] of a static pattern."""
    sees = STATIC[pattern](seqlen_q, seqlen_k, **factors)
    cells = [[sees(i, j) for j in range(seqlen_k)] for i in range(seqlen_q)]
    return np.array(cells, bool).reshape(seqlen_q, seqlen_k)


def dense_blocks(kept, q_bounds, k_bounds):
    """The boolean matrices [heads, seqlen_q, seqlen_k] of bitmaps [heads, query blocks, key blocks]."""
    sees = [
        [[head[_part(q_bounds, i)][_part(k_bounds, j)] for j in range(k_bounds[-1])] for i in range(q_bounds[-1])]
        for head in kept
    ]
    return np.array(sees, bool).reshape(len(kept), q_bounds[-1], k_bounds[-1])


def intervals(row):
    """The maximal half-open intervals of the True entries of a row."""
    edges = [j for j in range(len(row) + 1) if (j > 0 and row[j - 1]) != (j < len(row) and row[j])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def block_states(matrix, block_q, block_k):
    """Visibility of each block, [query blocks, key blocks]: 0 is none, 1 is partly, 2 is fully."""
    seqlen_q, seqlen_k = matrix.shape
    states = [
        [_state(matrix[i : i + block_q, j : j + block_k]) for j in range(0, seqlen_k, block_k)]
        for i in range(0, seqlen_q, block_q)
    ]
    return np.array(states, int).reshape(-(-seqlen_q // block_q), -(-seqlen_k // block_k))


def showings(calls, seqlen_q, seqlen_k):
    """Counts how often varlen calls show each pair: int [seqlen_q, seqlen_k].

    The rule is that of FlashAttention ≥ 2.1. In a document of Lq queries and Lk keys, query i sees the keys from
    i + Lk − Lq − left to i + Lk − Lq + right.
    """
    counts = np.zeros((seqlen_q, seqlen_k), int)
    for call in calls:
        left, right = (seqlen_q + seqlen_k if side is None else side for side in call.window)
        assert (call.cu_seqlens_q[-1], call.cu_seqlens_k[-1]) == (seqlen_q, seqlen_k)
        for q0, q1, k0, k1 in zip(*_spans(call.cu_seqlens_q), *_spans(call.cu_seqlens_k), strict=True):
            for i in range(q0, q1):
                middle = k0 + (i - q0) + (k1 - k0) - (q1 - q0)
                counts[i, max(k0, middle - left) : max(k0, min(k1, middle + right + 1))] += 1
    return counts


def _spans(cu_seqlens):
    return cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()


def _state(block):
    return 2 if block.all() else int(block.any())


def _part(bounds, position):
    return bisect_right(bounds, position) - 1


class _Documents:
    """Document d spans [start(d), start(d + 1))."""

    def __init__(self, lengths):
        self.bounds = [0, *accumulate(lengths)]
        self.last = len(lengths) - 1

    def of(self, position):
        return _part(self.bounds, position)

    def start(self, position):
        return self.bounds[self.of(position)]


def _full(sq, sk):
    return lambda i, j: True


def _causal(sq, sk):
    return lambda i, j: j - i <= sk - sq


def _full_sliding_window(sq, sk, window):
    return lambda i, j: abs(j - i - (sk - sq)) <= window


def _causal_sliding_window(sq, sk, window):
    return lambda i, j: -window <= j - i - (sk - sq) <= 0


def _full_document(sq, sk, documents):
    d = _Documents(documents)
    return lambda i, j: d.of(i) == d.of(j)


def _causal_document(sq, sk, documents):
    d = _Documents(documents)
    return lambda i, j: d.of(i) == d.of(j) and j <= i


def _block_causal_document(sq, sk, documents, block):
    d = _Documents(documents)
    return lambda i, j: d.of(i) == d.of(j) and (j - d.start(i)) // block <= (i - d.start(i)) // block


def _prefix_lm_causal(sq, sk, prefix):
    return lambda i, j: (j < prefix and i < prefix) or j <= i


def _prefix_lm_document(sq, sk, documents, prefix):
    d = _Documents(documents)
    return lambda i, j: d.of(i) == d.of(j) and ((i - d.start(i) < prefix and j - d.start(i) < prefix) or j <= i)


def _shared_question(sq, sk, documents):
    d = _Documents(documents)
    return lambda i, j: j <= i and (d.of(j) == d.of(i) or d.of(j) == 0)


def _global_sliding_window(sq, sk, window, global_tokens):
    return lambda i, j: i < global_tokens or j < global_tokens or abs(i - j) <= window


def _causal_blockwise(sq, sk, documents):
    d = _Documents(documents)
    return lambda i, j: j <= i and (d.of(i) == d.of(j) or d.of(i) == d.last)


STATIC = {
    "full": _full,
    "causal": _causal,
    "full_sliding_window": _full_sliding_window,
    "causal_sliding_window": _causal_sliding_window,
    "full_document": _full_document,
    "causal_document": _causal_document,
    "block_causal_document": _block_causal_document,
    "prefix_lm_causal": _prefix_lm_causal,
    "prefix_lm_document": _prefix_lm_document,
    "shared_question": _shared_question,
    "global_sliding_window": _global_sliding_window,
    "causal_blockwise": _causal_blockwise,
}
