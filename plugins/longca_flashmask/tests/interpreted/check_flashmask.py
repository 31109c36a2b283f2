"""flashmask under Triton's interpreter, against attention by the book in float64.

pytest does not collect this file by itself: `test_interpreted.py` runs it in a process that interprets. All is in
float16: the interpreter has no products of bfloat16, whose bits it would take for integers.
"""

from __future__ import annotations

import pytest
import torch

from longca import Device, Problem, masks
from longca.kernels.merge import merge
from longca.kernels.naive import Naive
from longca.masks import Form, Slice, SliceMask
from longca_flashmask.configs import Config, Configs
from longca_flashmask.flashmask import FlashMask

POINTERS = FlashMask(Configs(Config(64, 32, 4, 2), Config(32, 64, 4, 2), Config(64, 32, 4, 2)))
DESCRIPTORS = FlashMask(Configs(Config(32, 64, 4, 2, True), Config(64, 32, 4, 2, True), Config(32, 32, 4, 2, True)))

DOCUMENTS = [37, 1, 64, 41]
SEQLEN = sum(DOCUMENTS)
PATTERNS = {
    "full": {},
    "causal": {},
    "full_sliding_window": {"window": 20},
    "causal_sliding_window": {"window": 50},
    "full_document": {"documents": DOCUMENTS},
    "causal_document": {"documents": DOCUMENTS},
    "block_causal_document": {"documents": DOCUMENTS, "block": 16},
    "prefix_lm_causal": {"prefix": 50},
    "prefix_lm_document": {"documents": DOCUMENTS, "prefix": 20},
    "shared_question": {"documents": DOCUMENTS},
    "global_sliding_window": {"window": 15, "global_tokens": 10},
    "causal_blockwise": {"documents": DOCUMENTS},
}
HOLES = SliceMask([Slice(10, 100, 15, 90, lo=-30, hi=20), Slice(101, 102, 5, 6), Slice(110, 119, 30, 31)], 130, 95)
COMB = SliceMask([Slice(20 * q, 20 * q + 9, 20 * k, 20 * k + 9) for k in range(5) for q in range(4)], 80, 100)

TOLERANCE = 4e-3  # of the largest value


def problem(mask, heads_q=2, heads_kv=1, head_dim=64, **other):
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        dtype="float16",
        device=Device("cpu"),
        **{"direction": "backward", **other},
    )


def inputs(asked):
    """q, k, v and dout."""
    random = torch.Generator().manual_seed(0)
    queries = (asked.mask.seqlen_q, asked.heads_q, asked.head_dim)
    keys = (asked.mask.seqlen_k, asked.heads_kv, asked.head_dim)
    return [torch.randn(shape, generator=random).half() for shape in (queries, keys, keys, queries)]


def both_ways(kernel, asked, q, k, v, dout):
    """out, lse, dq, dk and dv."""
    plan = kernel.plan(asked)
    out, lse = kernel.forward(q, k, v, plan)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)


def compare(results, expected):
    for name, result, value in zip(("out", "lse", "dq", "dk", "dv"), results, expected, strict=True):
        finite = value.masked_fill(value == -torch.inf, 0.0)
        bound = TOLERANCE * max(1.0, float(finite.abs().max())) if value.numel() else 0.0
        torch.testing.assert_close(
            result.double(), value, rtol=0.0, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
        )


def check(asked, kernel=POINTERS, tensors=None):
    tensors = inputs(asked) if tensors is None else tensors
    results = both_ways(kernel, asked, *tensors)
    compare(results, both_ways(Naive(), asked, *(x.double() for x in tensors)))
    return results


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_static_pattern(pattern):
    assert set(PATTERNS) == {name for name, made in masks.PATTERNS.items() if not made.admits(Form.BLOCK_SPARSE)}
    check(problem(masks.build(pattern, seqlen=SEQLEN, **PATTERNS[pattern])))


@pytest.mark.parametrize("pattern", ["full", "causal_document", "shared_question", "global_sliding_window"])
def test_descriptors(pattern):
    check(problem(masks.build(pattern, seqlen=SEQLEN, **PATTERNS[pattern])), DESCRIPTORS)


@pytest.mark.parametrize("kernel", [POINTERS, DESCRIPTORS], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("mask", [HOLES, COMB], ids=["holes", "comb"])
def test_other_masks(mask, kernel):
    out, lse, dq, dk, dv = check(problem(mask, 2, 2), kernel)
    dense = torch.from_numpy(mask.dense())
    sees_none, seen_by_none = ~dense.any(1), ~dense.any(0)
    assert sees_none.any()
    assert (out[sees_none] == 0).all()
    assert (lse[:, sees_none] == -torch.inf).all()
    assert (dq[sees_none] == 0).all()
    assert (dk[seen_by_none] == 0).all()
    assert (dv[seen_by_none] == 0).all()


@pytest.mark.parametrize("lengths", [(1, 1), (5, 130), (64, 32), (192, 128), (65, 63), (33, 0), (0, 33)])
def test_lengths(lengths):
    slices = [Slice(0, lengths[0], 0, lengths[1])] if all(lengths) else []
    check(problem(SliceMask(slices, *lengths)))


@pytest.mark.parametrize(("heads_q", "heads_kv"), [(3, 3), (8, 1), (6, 2)])
def test_heads(heads_q, heads_kv):
    mask = masks.build("causal_document", seqlen=90, documents=[50, 40])
    check(problem(mask, heads_q, heads_kv), DESCRIPTORS)


@pytest.mark.parametrize("head_dim", [128, 256])
def test_head_dimensions(head_dim):
    check(problem(masks.build("causal", seqlen=70), head_dim=head_dim))


def test_large_scores_and_a_scale_of_ones_own():
    asked = problem(masks.build("causal", seqlen=70), softmax_scale=2.0)
    results = check(asked, DESCRIPTORS)
    assert all(x.isfinite().all() for x in results)


# Keys past the end get infinite weights in the kernel of dk and dv; these stay in their own rows, which are not stored.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_very_negative_scores_past_which_a_block_of_keys_ends():
    asked = problem(masks.build("full", seqlen=40), 1, softmax_scale=30.0)
    q, k, v, dout = inputs(asked)
    check(asked, POINTERS, (q.abs(), -k.abs(), v, dout))


def test_equal_scores_count_keys_exactly():
    asked = problem(HOLES, 2, 2)
    q, k, v, _ = inputs(asked)
    _, lse = POINTERS.forward(torch.zeros_like(q), k, v, POINTERS.plan(asked))
    counts = torch.from_numpy(HOLES.dense().sum(1)).double()
    torch.testing.assert_close(lse.double().exp(), counts.expand(2, -1), rtol=1e-6, atol=0.0)


def test_a_backward_with_the_out_and_lse_of_a_larger_softmax():
    whole = problem(masks.build("causal", seqlen=100))
    q, k, v, dout = inputs(whole)
    halves = [(0, 40), (40, 100)]
    parts, plans = [], []
    for start, stop in halves:
        asked = whole.with_mask(whole.mask.cut([(0, 100)], [(start, stop)]))
        plans.append(DESCRIPTORS.plan(asked))
        parts.append(DESCRIPTORS.forward(q, k[start:stop], v[start:stop], plans[-1]))
    out, lse = merge(*parts)
    grads = [
        DESCRIPTORS.backward(dout, q, k[start:stop], v[start:stop], out.to(q.dtype), lse, plan)
        for (start, stop), plan in zip(halves, plans, strict=True)
    ]
    dq = sum(part[0].double() for part in grads)
    dk, dv = (torch.cat([part[i] for part in grads]) for i in (1, 2))
    expected = both_ways(Naive(), whole, *(x.double() for x in (q, k, v, dout)))
    compare((out, lse, dq, dk, dv), expected)


@pytest.mark.parametrize("kernel", [POINTERS, DESCRIPTORS], ids=["pointers", "descriptors"])
def test_any_strides(kernel):
    asked = problem(masks.build("causal_document", seqlen=70, documents=[30, 40]), 4, 2)
    q, k, v, dout = inputs(asked)
    fused = torch.cat([q, k, v], dim=1)  # one projection's output, with q, k and v side by side
    q_part, k_part, v_part = fused.split([4, 2, 2], dim=1)
    by_head = dout.transpose(0, 1).contiguous().transpose(0, 1)
    check(asked, kernel, (q_part, k_part, v_part, dout))
    check(asked, kernel, (q_part, k_part, v_part, by_head))
    check(asked, kernel, (q, k.mT.contiguous().mT, v, dout[:, :1].expand(-1, 4, -1)))


def test_buffers_are_filled_whatever_their_strides():
    asked = problem(HOLES, 4, 2)
    tensors = inputs(asked)
    expected = both_ways(POINTERS, asked, *tensors)
    q, k, v, dout = tensors
    plan = POINTERS.plan(asked)

    def poisoned(like, layout):
        other = like.permute(layout).contiguous()
        return torch.full_like(other, torch.nan).permute([layout.index(i) for i in range(like.dim())])

    for layout in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        buffers = [poisoned(x, layout) for x in (q, q, k, v)]
        sums = poisoned(expected[1], [1, 0])
        out, lse = POINTERS.forward(q, k, v, plan, out=buffers[0], lse=sums)
        grads = POINTERS.backward(dout, q, k, v, out, lse, plan, dq=buffers[1], dk=buffers[2], dv=buffers[3])
        assert all(a is b for a, b in zip((out, lse, *grads), (buffers[0], sums, *buffers[1:]), strict=True))
        for result, value in zip((out, lse, *grads), expected, strict=True):
            assert torch.equal(result, value)


def test_offsets_past_32_bits():
    asked = problem(masks.build("causal", seqlen=70), 2)
    tensors = inputs(asked)
    # 70 tokens that lie 2²⁵ elements apart span 4.4 GiB, of which a few pages are ever touched.
    far = [torch.empty(70 * 2**25, dtype=torch.float16).view(70, 2**25) for _ in range(2)]
    k = far[0][:, :64].unsqueeze(1)
    dk = far[1][:, :64].unsqueeze(1)
    k.copy_(tensors[1])
    q, _, v, dout = tensors
    plan = POINTERS.plan(asked)
    out, lse = POINTERS.forward(q, k, v, plan)
    dq, dk, dv = POINTERS.backward(dout, q, k, v, out, lse, plan, dk=dk)
    compare((out, lse, dq, dk, dv), both_ways(Naive(), asked, *(x.double() for x in tensors)))


def test_a_plan_of_the_forward_alone_is_smaller():
    mask = masks.build("causal", seqlen=SEQLEN)
    forward = POINTERS.plan(problem(mask, direction="forward"))
    assert forward.key_intervals is None
    assert not forward.by_key
    assert 0 < forward.metadata_bytes < POINTERS.plan(problem(mask)).metadata_bytes
