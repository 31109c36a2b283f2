"""flashmask under Triton's interpreter, against attention by the book in float64.

pytest does not collect this file by itself: `test_interpreted.py` runs it in a process that interprets.
"""

from __future__ import annotations

import pytest
import torch

from longca import masks
from longca.masks import Form, Slice, SliceMask
from longca_flashmask.flashmask import FlashMask
from longca_triton import checking
from longca_triton.checking import (
    check_buffers,
    check_far_offsets,
    check_parts,
    check_sinks,
    check_strides,
    cpu_problem,
    draw_tensors,
)
from longca_triton.config import Config, Configs

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


def problem(mask, heads_q=2, heads_kv=1, **other):
    return cpu_problem(mask, heads_q, heads_kv, **other)


def check(asked, kernel=POINTERS, tensors=None):
    return checking.check(asked, kernel, tensors)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_static_pattern(pattern):
    assert set(PATTERNS) == {name for name, made in masks.PATTERNS.items() if not made.admits(Form.BLOCK_SPARSE)}
    check(problem(masks.build(pattern, seqlen=SEQLEN, **PATTERNS[pattern])))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pattern", ["full", "causal_document", "shared_question", "global_sliding_window"])
def test_descriptors(pattern):
    check(problem(masks.build(pattern, seqlen=SEQLEN, **PATTERNS[pattern])), DESCRIPTORS)


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
    q, k, v, dout = draw_tensors(asked)
    check(asked, POINTERS, (q.abs(), -k.abs(), v, dout))


def test_equal_scores_count_keys_exactly():
    asked = problem(HOLES, 2, 2)
    q, k, v, _ = draw_tensors(asked)
    _, lse = POINTERS.forward(torch.zeros_like(q), k, v, POINTERS.plan(asked))
    counts = torch.from_numpy(HOLES.dense().sum(1)).double()
    torch.testing.assert_close(lse.double().exp(), counts.expand(2, -1), rtol=1e-6, atol=0.0)


def test_a_backward_with_the_out_and_lse_of_a_larger_softmax():
    check_parts(problem(masks.build("causal", seqlen=100)), DESCRIPTORS, 40)


def test_sinks():
    check_sinks(problem(HOLES, sinks=True), POINTERS)


@pytest.mark.parametrize("kernel", [POINTERS, DESCRIPTORS], ids=["pointers", "descriptors"])
def test_any_strides(kernel):
    check_strides(problem(masks.build("causal_document", seqlen=70, documents=[30, 40]), 4, 2), kernel)


def test_buffers_are_filled_whatever_their_strides():
    check_buffers(problem(HOLES, 4, 2), POINTERS)


def test_offsets_past_32_bits():
    check_far_offsets(problem(masks.build("causal", seqlen=70), 2), POINTERS)
