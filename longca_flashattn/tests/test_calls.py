"""Masks as calls: the calls together show exactly the mask, and their merged results and gradients are right."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import Form, Slice, SliceMask
from longca_builtin.naive import Naive
from longca_flashattn.calls import CallsKernel

DOCUMENTS = [70, 1, 128, 101]
PATTERNS = {
    "full": (Form.FULL, {}),
    "causal": (Form.CAUSAL, {}),
    "full_sliding_window": (Form.WINDOW, {"window": 50}),
    "causal_sliding_window": (Form.WINDOW, {"window": 120}),
    "full_document": (Form.VARLEN, {"documents": DOCUMENTS}),
    "causal_document": (Form.VARLEN, {"documents": DOCUMENTS}),
    "block_causal_document": (Form.LAYERS, {"documents": DOCUMENTS, "block": 48}),
    "prefix_lm_causal": (Form.LAYERS, {"prefix": 150}),
    "prefix_lm_document": (Form.LAYERS, {"documents": DOCUMENTS, "prefix": 60}),
    "shared_question": (Form.LAYERS, {"documents": DOCUMENTS}),
    "global_sliding_window": (Form.LAYERS, {"window": 40, "global_tokens": 30}),
    "causal_blockwise": (Form.LAYERS, {"documents": DOCUMENTS}),
}
HOLES = SliceMask([Slice(40, 200, 30, 290, lo=-90, hi=60), Slice(210, 290, 100, 101)], 300, 300)


class ByTheBook(CallsKernel):
    """FlashAttention's answers, computed document by document in float64. A query that sees nothing has lse +inf."""

    def backend(self, problem):
        return "the book"

    def _problem(self, call, plan):
        slices = []
        bounds_q = [0, call.max_seqlen_q] if call.cu_seqlens_q is None else call.cu_seqlens_q.tolist()
        bounds_k = [0, call.max_seqlen_k] if call.cu_seqlens_k is None else call.cu_seqlens_k.tolist()
        for (q0, q1), (k0, k1) in zip(pairwise(bounds_q), pairwise(bounds_k), strict=True):
            assert q1 - q0 <= call.max_seqlen_q
            assert k1 - k0 <= call.max_seqlen_k
            corner = k1 - q1
            lo = -(2**40) if call.left < 0 else corner - call.left
            hi = 2**40 if call.right < 0 else corner + call.right
            if q1 > q0 and k1 > k0:
                slices.append(Slice(q0, q1, k0, k1, lo, hi))
        mask = plan.problem.concrete_mask
        return replace(plan.problem, mask=SliceMask(slices, mask.seqlen_q, mask.seqlen_k))

    def call_forward(self, q, k, v, call, plan, out, lse):
        result, sums = Naive().forward(q, k, v, Naive().plan(self._problem(call, plan)))
        sums = sums.masked_fill(sums == -torch.inf, torch.inf)
        out = torch.empty_like(q) if out is None else out
        lse = torch.empty_like(sums) if lse is None else lse
        return out.copy_(result), lse.copy_(sums)

    def call_backward(self, dout, q, k, v, out, lse, call, plan, dq, dk, dv):
        assert not lse.isinf().any()
        grads = Naive().backward(dout, q, k, v, out, lse, Naive().plan(self._problem(call, plan)))
        return tuple(
            grad if buffer is None else buffer.copy_(grad) for grad, buffer in zip(grads, (dq, dk, dv), strict=True)
        )


def problem(mask):
    return Problem(
        mask=mask, heads_q=4, heads_kv=2, head_dim=16, dtype="float64", device=Device("cpu"), direction="backward"
    )


def tensors(asked):
    random = torch.Generator().manual_seed(0)
    queries = (asked.mask.seqlen_q, asked.heads_q, asked.head_dim)
    keys = (asked.mask.seqlen_k, asked.heads_kv, asked.head_dim)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in (queries, keys, keys, queries)]


def compare(mask, given_buffers):
    asked = problem(mask)
    q, k, v, dout = tensors(asked)
    plan, book = ByTheBook().plan(asked), Naive().plan(asked)
    expected_out, expected_lse = Naive().forward(q, k, v, book)
    expected = Naive().backward(dout, q, k, v, expected_out, expected_lse, book)
    buffers = {"out": torch.full_like(q, torch.nan), "lse": torch.full_like(expected_lse, torch.nan)}
    # A buffer whose last dimension is not contiguous, as a caller may pass it.
    grads = {"dq": torch.full((*q.shape[:2], 32), torch.nan, dtype=q.dtype)[..., ::2]}
    grads |= {"dk": torch.full_like(k, torch.nan), "dv": torch.full_like(v, torch.nan)}
    out, lse = ByTheBook().forward(q, k, v, plan, **(buffers if given_buffers else {}))
    found = ByTheBook().backward(dout, q, k, v, out, lse, plan, **(grads if given_buffers else {}))
    if given_buffers:
        assert out is buffers["out"]
        assert lse is buffers["lse"]
        assert all(one is other for one, other in zip(found, grads.values(), strict=True))
    # Merged parts have a log-sum-exp in float32.
    close = {"atol": 1e-5, "rtol": 1e-5} if len(plan.calls) > 1 else {"atol": 1e-12, "rtol": 1e-12}
    for one, other in zip((out, lse, *found), (expected_out, expected_lse, *expected), strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), **close)
    return plan


@pytest.mark.parametrize("given_buffers", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_calls_make_the_mask(pattern, given_buffers):
    form, factors = PATTERNS[pattern]
    plan = compare(masks.build(pattern, 300, **factors), given_buffers)
    assert plan.form is form
    assert (len(plan.calls) > 1) == (form is Form.LAYERS)
    if form is Form.FULL:
        assert plan.metadata_bytes == 0
    if form is Form.VARLEN:
        assert plan.metadata_bytes == 2 * 4 * (len(DOCUMENTS) + 1)


def test_causal_is_the_causal_flag_and_no_window():
    (call,) = ByTheBook().plan(problem(masks.build("causal", 300))).calls
    assert call.causal
    (call,) = ByTheBook().plan(problem(masks.build("causal_sliding_window", 300, window=20))).calls
    assert not call.causal
    assert (call.left, call.right) == (20, 0)


def test_rows_that_see_nothing():
    plan = compare(HOLES, given_buffers=True)
    assert plan.empty is not None
    assert plan.empty.sum() == 300 - 160 - 80


@pytest.mark.parametrize("pattern", ["full", "causal"])
@pytest.mark.parametrize("seqlen_q", [1, 77])
def test_fewer_queries_than_keys(pattern, seqlen_q):
    compare(masks.build(pattern, seqlen_q, seqlen_k=300), given_buffers=False)


@pytest.mark.parametrize("lengths", [(5, 0), (0, 5), (300, 300)])
def test_nothing_at_all(lengths):
    compare(SliceMask([], *lengths), given_buffers=True)
