import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import RequestError, UnknownNameError
from longca.masks import PATTERNS, Form, build, get_pattern, register, sample

from . import predicates
from .strategies import document_lengths, factors_for, static_cases

STATIC = sorted(predicates.STATIC)
DYNAMIC = ["uniform_block_sparse", "variable_block_sparse"]


@pytest.mark.parametrize("pattern", STATIC)
@given(data=st.data())
def test_a_static_pattern_shows_what_the_table_says(pattern, data):
    case = data.draw(static_cases(pattern=pattern))
    assert case.mask.dense().tolist() == case.dense.tolist()
    assert case.mask.area == case.dense.sum()
    assert case.mask.pattern == pattern
    assert case.mask.factors == {k: tuple(v) if k == "documents" else v for k, v in case.factors.items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pattern", STATIC)
@given(data=st.data())
def test_every_mask_of_a_pattern_admits_its_forms_within_their_counts(pattern, data):
    kind, mask = PATTERNS[pattern], data.draw(static_cases(pattern=pattern)).mask
    if not mask.is_empty:
        for form, most in kind.forms.items():
            assert kind.admits(form)
            assert mask.admits(form)
            assert mask.count(form) <= kind.count(form)
            assert most is None or mask.count(form) <= most


@pytest.mark.parametrize(
    ("pattern", "factors"),
    [
        ("prefix_lm_document", {"documents": [5, 1, 9, 3], "prefix": 4}),
        ("shared_question", {"documents": [3, 1, 5, 4]}),
        ("global_sliding_window", {"window": 2, "global_tokens": 3}),
        ("causal_blockwise", {"documents": [3, 1, 5, 4, 2]}),
    ],
)
def test_the_declared_counts_are_reached(pattern, factors):
    mask = build(pattern, sum(factors.get("documents", [24])), **factors)
    forms = (Form.ROW_INTERVALS, Form.COLUMN_INTERVALS, Form.LAYERS)
    assert [mask.count(f) for f in forms] == [PATTERNS[pattern].count(f) for f in forms]


@pytest.mark.parametrize("pattern", [n for n in STATIC if PATTERNS[n].rectangular])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 9), (9, 1), (3, 8), (8, 3)])
def test_rectangular_patterns_are_aligned_at_the_bottom_right(pattern, seqlen_q, seqlen_k):
    factors = {"window": 2} if "window" in PATTERNS[pattern].factors else {}
    mask = build(pattern, seqlen_q, seqlen_k=seqlen_k, **factors)
    assert mask.dense().tolist() == predicates.dense(pattern, seqlen_q, seqlen_k, factors).tolist()
    assert mask.dense()[-1, -1]


@given(st.integers(1, 24), st.integers(1, 9), st.floats(0.01, 1), st.integers(1, 3), st.integers(0, 2**63 - 1))
def test_uniform_blocks_keep_the_asked_share_of_key_blocks_in_every_row_and_head(seqlen, block, kept, heads, seed):
    mask = build("uniform_block_sparse", seqlen, block=block, kept=kept, heads=heads, seed=seed)
    bounds = [*range(0, seqlen, block), seqlen]
    _check_blocks(mask, bounds, kept, heads)
    assert build("uniform_block_sparse", seqlen, block=block, kept=kept, heads=heads, seed=seed) == mask


@given(document_lengths(24), st.floats(0.01, 1), st.integers(1, 3), st.integers(0, 99))
def test_variable_blocks_keep_the_asked_share_of_key_blocks_too(sizes, kept, heads, seed):
    bounds = [0, *np.cumsum(sizes).tolist()]
    _check_blocks(
        build("variable_block_sparse", 24, boundaries=bounds, kept=kept, heads=heads, seed=seed), bounds, kept, heads
    )


def _check_blocks(mask, bounds, share, heads):
    assert mask.heads == heads
    assert mask.q_bounds.tolist() == mask.k_bounds.tolist() == bounds
    blocks = len(bounds) - 1
    bitmaps = [mask.kept(h).tolist() for h in range(heads)]
    assert {sum(row) for bitmap in bitmaps for row in bitmap} == {max(1, int(share * blocks + 1e-9))}
    expected = predicates.dense_blocks(bitmaps, bounds, bounds)
    assert mask.dense().tolist() == (expected if heads > 1 else expected[0]).tolist()


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_a_pattern_answers_for_its_masks(pattern):
    kind, mask = get_pattern(pattern), sample(pattern, 2048)
    assert kind.is_square
    assert kind.block_size is None
    assert kind.heads == (2 if kind.per_head else 1)
    assert all(mask.admits(form) for form in kind.forms)
    assert not kind.admits(Form.BLOCK_SPARSE) or kind.per_head


@given(data=st.data(), parts=st.lists(st.sampled_from(STATIC), min_size=2, max_size=3), seqlen=st.integers(1, 20))
def test_an_intersection_shows_what_all_parts_show_and_admits_its_forms(data, parts, seqlen):
    factors = {name: value for part in parts for name, value in data.draw(factors_for(part, seqlen)).items()}
    of = [{name: factors[name] for name in PATTERNS[part].factors} for part in parts]
    dense = [predicates.dense(part, seqlen, seqlen, its) for part, its in zip(parts, of, strict=True)]
    mask, kind = build("&".join(parts), seqlen, **factors), get_pattern("&".join(parts))
    assert mask.dense().tolist() == np.logical_and.reduce(dense).tolist()
    assert (mask.pattern, mask.factors.keys()) == (" & ".join(parts), factors.keys())
    for form in () if mask.is_empty else kind.forms:
        assert mask.admits(form)
        assert mask.count(form) <= kind.count(form)


def test_the_parts_of_an_intersection_share_factors_that_are_drawn():
    both = sample("causal_document & causal_sliding_window", 4096, window=100, lengths="pile", seed=3)
    document = sample("causal_document", 4096, lengths="pile", seed=3)
    assert both == document & build("causal_sliding_window", 4096, window=100)
    assert both.factors == {"documents": document.factors["documents"], "window": 100}
    with pytest.raises(UnknownNameError, match=r"unknown mask pattern 'casual'\. Did you mean causal"):
        get_pattern("full_document & casual")


def test_plugins_may_register_patterns_under_new_names_alone(monkeypatch):
    monkeypatch.setattr("longca.masks.patterns.PATTERNS", patterns := dict(PATTERNS))
    twin = dataclasses.replace(PATTERNS["causal"], name="twin")
    assert register(twin) is twin
    assert patterns["twin"] is twin
    with pytest.raises(RequestError, match="'twin' is registered already"):
        register(twin)
    with pytest.raises(UnknownNameError, match=r"unknown mask factor 'windows'. Did you mean window"):
        register(dataclasses.replace(twin, name="other", factors=("windows",)))
