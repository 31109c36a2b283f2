"""Masks as calls: the calls together show exactly the mask, and their merged results and gradients are right."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import Form, Slice, SliceMask
from longca_builtin.naive import Naive
from longca_flashattn.calls import CallsKernel
from longca_flashattn.layers import EmptyRows

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
#: Masks of layers that are one call over copies of keys.
JOINED = {"shared_question", "causal_blockwise"}


class ByTheBook(CallsKernel):
    """FlashAttention's answers, computed document by document in float64. A query that sees nothing has lse +inf.

    Rows that a call does not compute keep their values in buffers, and are NaN elsewhere.
    """

    def backend(self, problem):
        return "the book"

    def _problem(self, call, plan):
        slices = []
        bounds_q = [0, call.max_seqlen_q] if call.cu_seqlens_q is None else call.cu_seqlens_q.tolist()
        bounds_k = [0, call.max_seqlen_k] if call.cu_seqlens_k is None else call.cu_seqlens_k.tolist()
        used = [q1 - q0 for q0, q1 in pairwise(bounds_q)] if call.seqused_q is None else call.seqused_q.tolist()
        for (q0, stop), (k0, k1), count in zip(pairwise(bounds_q), pairwise(bounds_k), used, strict=True):
            q1 = q0 + count
            assert q1 <= stop
            assert q1 - q0 <= call.max_seqlen_q
            assert k1 - k0 <= call.max_seqlen_k
            corner = k1 - q1
            lo = -(2**40) if call.left < 0 else corner - call.left
            hi = 2**40 if call.right < 0 else corner + call.right
            if q1 > q0 and k1 > k0:
                slices.append(Slice(q0, q1, k0, k1, lo, hi))
        return replace(plan.problem, mask=SliceMask(slices, bounds_q[-1], bounds_k[-1]))

    def call_forward(self, q, k, v, call, plan, out, lse):
        result, sums = Naive().forward(q, k, v, Naive().plan(self._problem(call, plan)))
        sums = sums.masked_fill(sums == -torch.inf, torch.inf)
        out = torch.full_like(result, torch.nan) if out is None else out
        lse = torch.full_like(sums, torch.nan) if lse is None else lse
        rows = computed_rows(call, q)
        out[rows], lse[:, rows] = result[rows], sums[:, rows].to(lse.dtype)
        return out, lse

    def call_backward(self, dout, q, k, v, out, lse, call, plan, dq, dk, dv):
        assert not lse.isinf().any()
        grads = Naive().backward(dout, q, k, v, out, lse, Naive().plan(self._problem(call, plan)))
        dq, dk, dv = (torch.full_like(x, torch.nan) if b is None else b for x, b in ((q, dq), (k, dk), (v, dv)))
        rows = computed_rows(call, q)
        dq[rows] = grads[0][rows]
        return dq, dk.copy_(grads[1]), dv.copy_(grads[2])


class SkipsRows(ByTheBook):
    """The same of functions that can leave rows alone."""

    skips_rows = True


class JoinsKeys(ByTheBook):
    """The same with copies of keys in place of merging, where layers allow it."""

    joins_keys = True


class Both(SkipsRows, JoinsKeys):
    """The same with copies of keys where layers would be merged."""


class CutsTensors(Both):
    """The same with slices of the tensors for one document."""

    cuts_tensors = True


KERNELS = {
    "all rows": ByTheBook(),
    "some rows": SkipsRows(),
    "copies": JoinsKeys(),
    "both": Both(),
    "all": CutsTensors(),
}


def computed_rows(call, q):
    """The rows that a call writes: bool [Tq]."""
    if call.seqused_q is None:
        return torch.ones(len(q), dtype=torch.bool)
    lengths = call.cu_seqlens_q.diff()
    assert set((call.seqused_q / lengths.clamp(min=1)).tolist()) <= {0.0, 1.0}
    return torch.repeat_interleave(call.seqused_q > 0, lengths)


def problem(mask):
    about = {"heads_q": 4, "heads_kv": 2, "head_dim": 16, "head_dim_v": 24, "dtype": "float64"}
    return Problem(mask=mask, device=Device("cpu"), direction="backward", **about)


def tensors(asked):
    random = torch.Generator().manual_seed(0)
    queries, keys = (asked.mask.seqlen_q, asked.heads_q), (asked.mask.seqlen_k, asked.heads_kv)
    dim, dim_v = asked.dims
    shapes = (*queries, dim), (*keys, dim), (*keys, dim_v), (*queries, dim_v)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]


def compare(mask, given_buffers, kernel=ByTheBook()):
    asked = problem(mask)
    q, k, v, dout = tensors(asked)
    plan, book = kernel.plan(asked), Naive().plan(asked)
    expected_out, expected_lse = Naive().forward(q, k, v, book)
    expected = Naive().backward(dout, q, k, v, expected_out, expected_lse, book)
    buffers = {"out": torch.full_like(dout, torch.nan), "lse": torch.full_like(expected_lse, torch.nan)}
    # A buffer whose last dimension is not contiguous, as a caller may pass it.
    grads = {"dq": torch.full((*q.shape[:2], 32), torch.nan, dtype=q.dtype)[..., ::2]}
    grads |= {"dk": torch.full_like(k, torch.nan), "dv": torch.full_like(v, torch.nan)}
    out, lse = kernel.forward(q, k, v, plan, **(buffers if given_buffers else {}))
    found = kernel.backward(dout, q, k, v, out, lse, plan, **(grads if given_buffers else {}))
    if given_buffers:
        assert out is buffers["out"]
        assert lse is buffers["lse"]
        assert all(one is other for one, other in zip(found, grads.values(), strict=True))
    # Merged parts have a log-sum-exp in float32.
    close = {"atol": 1e-5, "rtol": 1e-5} if len(plan.calls) > 1 else {"atol": 1e-12, "rtol": 1e-12}
    for one, other in zip((out, lse, *found), (expected_out, expected_lse, *expected), strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), **close)
    return plan


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("given_buffers", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_calls_make_the_mask(pattern, given_buffers, kernel):
    form, factors = PATTERNS[pattern]
    plan = compare(masks.build(pattern, 300, **factors), given_buffers, kernel)
    assert plan.form is form
    is_joined = kernel.joins_keys and pattern in JOINED and not (kernel.skips_rows and pattern == "causal_blockwise")
    assert (len(plan.calls) > 1) == (form is Form.LAYERS and not is_joined)
    if form is Form.FULL:
        assert plan.metadata_bytes == 0
    if form is Form.VARLEN:
        assert plan.metadata_bytes == 2 * 4 * (len(DOCUMENTS) + 1)


@pytest.mark.parametrize(
    ("pattern", "alone"),
    [
        ("prefix_lm_causal", [True, True]),
        ("prefix_lm_document", [True, True]),
        ("causal_blockwise", [True, True]),
        ("shared_question", [False, False]),
        ("global_sliding_window", [True, False, False]),
    ],
)
def test_layers_that_are_alone_on_their_rows(pattern, alone):
    asked = problem(masks.build(pattern, 300, **PATTERNS[pattern][1]))
    calls = SkipsRows().plan(asked).calls
    assert [call.rows is not None for call in calls] == alone
    assert all(call.rows is None for call in ByTheBook().plan(asked).calls)


def test_copies_of_keys_lie_side_by_side():
    """Two ranges of keys that all of some queries see, and causal keys after a range that all see."""
    whole = [Slice(0, 30, 0, 10), Slice(0, 30, 50, 80), Slice(50, 70, 10, 11), Slice(50, 70, 30, 77)]
    plan = compare(SliceMask(whole, 90, 90), given_buffers=True, kernel=JoinsKeys())
    (call,) = plan.calls
    assert call.copies.keys.tolist() == [*range(10), *range(50, 80), 10, *range(30, 77)]
    assert call.cu_seqlens_k.diff().tolist() == [40, 0, 48, 0]
    causal = [Slice(0, 30, 0, 30, hi=0), Slice(30, 60, 0, 20), Slice(30, 60, 30, 60, hi=0)]
    (call,) = compare(SliceMask(causal, 60, 60), given_buffers=True, kernel=JoinsKeys()).calls
    assert call.copies.keys.tolist() == [*range(30), *range(20), *range(30, 60)]
    assert call.causal


@pytest.mark.parametrize(
    "slices",
    [
        pytest.param([Slice(0, 30, 0, 30), Slice(30, 60, 0, 60, hi=0)], id="whole keys alone beside causal ones"),
        pytest.param([Slice(0, 30, 0, 30, hi=0), Slice(0, 30, 40, 70, hi=40)], id="two causal ranges"),
        pytest.param([Slice(0, 30, 0, 5), Slice(0, 30, 10, 30, hi=0)], id="fewer causal keys than queries"),
        pytest.param([Slice(10 * n, 10 * n + 10, 0, 30 + n) for n in range(6)], id="many numbers of copies"),
    ],
)
def test_layers_that_are_no_one_call(slices):
    plan = compare(SliceMask(slices, 60, 70), given_buffers=True, kernel=JoinsKeys())
    assert all(call.copies is None for call in plan.calls)


@pytest.mark.parametrize("holes", [1, 3, 40])
def test_rows_that_see_nothing_are_cleared_alone(holes):
    empty = np.zeros(200, bool)
    for hole in range(holes):
        empty[5 * hole : 5 * hole + 3] = True
    rows, out, lse = EmptyRows.of(empty, torch.device("cpu")), torch.ones(200, 2, 4), torch.ones(2, 200)
    rows.clear(out)
    rows.clear_sums(lse)
    assert bool(rows.ranges) == (holes < 40)
    assert np.array_equal((out == 0).all(2).all(1).numpy(), empty)
    assert np.array_equal((lse == -torch.inf).all(0).numpy(), empty)
    assert (out.sum(), lse[:, ~torch.from_numpy(empty)].sum()) == ((~empty).sum() * 8, (~empty).sum() * 2)


#: The rectangles of masks with one document: queries and keys, and the band's upper bound within them.
RECTANGLES = {
    "some keys": (slice(0, 300), slice(0, 120), None),
    "some queries": (slice(180, 300), slice(0, 300), None),
    "inside": (slice(40, 200), slice(30, 290), None),
    "causal": (slice(40, 200), slice(30, 290), 90),
    "causal with queries that see nothing": (slice(10, 200), slice(50, 150), -50),
}


@pytest.mark.parametrize("given_buffers", [False, True])
@pytest.mark.parametrize("rectangle", RECTANGLES)
def test_one_document_is_a_call_on_slices(rectangle, given_buffers):
    rows, keys, hi = RECTANGLES[rectangle]
    band = {} if hi is None else {"hi": hi}
    mask = SliceMask([Slice(rows.start, rows.stop, keys.start, keys.stop, **band)], 300, 300)
    plan = compare(mask, given_buffers, CutsTensors())
    (call,) = plan.calls
    assert call.part is not None
    assert call.cu_seqlens_q is None
    assert rows.start <= call.part.rows.start < call.part.rows.stop == rows.stop
    assert call.part.keys == keys
    (call,) = Both().plan(plan.problem).calls
    assert call.part is None


#: Masks of several rectangles, one below the other: their slices, and the queries and keys of each rectangle.
STRIPES = {
    "chunks of a zigzag": (
        [Slice(0, 100, 0, 100, hi=0), Slice(100, 200, 0, 300, hi=100)],
        [((0, 100), (0, 100)), ((100, 200), (0, 300))],
    ),
    "a prefix": (
        [Slice(0, 80, 0, 80), Slice(80, 200, 0, 200, hi=0)],
        [((0, 80), (0, 80)), ((80, 200), (0, 200))],
    ),
}


@pytest.mark.parametrize("given_buffers", [False, True])
@pytest.mark.parametrize("stripes", STRIPES)
def test_rectangles_below_one_another_are_calls_on_slices(stripes, given_buffers):
    slices, wanted = STRIPES[stripes]
    plan = compare(SliceMask(slices, 200, 300), given_buffers, CutsTensors())
    assert plan.form is Form.LAYERS
    assert [
        ((c.part.rows.start, c.part.rows.stop), (c.part.keys.start, c.part.keys.stop)) for c in plan.calls
    ] == wanted
