import tracemalloc

import numpy as np
import pytest

from longca.errors import MaskError, UnknownNameError
from longca.masks import FACTORS, MAX_SEQLEN, PATTERNS, build, sample

BAD = [
    ("causal_document", {"documents": [3, 4]}, "documents sum to 7 tokens, but seqlen is 8; make the lengths sum"),
    ("causal_document", {"documents": [9, -1]}, "document 1 has length -1"),
    ("causal_document", {"documents": [4.0, 4.0]}, "at least one integer length"),
    ("causal_document", {"documents": 8}, "give a list of document lengths"),
    ("causal_sliding_window", {"window": 2**30 + 1}, f"from 0 to {2**30}"),
    ("prefix_lm_causal", {"prefix": 9}, r"prefix is 9; it must be from 0 to 8 \(the sequence length\)"),
    ("global_sliding_window", {"window": 1, "global_tokens": 9}, "global_tokens is 9; it must be from 0 to 8"),
    ("uniform_block_sparse", {"block": 4, "kept": 1.01}, "above 0 and at most 1"),
    ("uniform_block_sparse", {"block": 4, "kept": 1, "heads": 0}, f"heads is 0; it must be from 1 to {2**16}"),
    ("variable_block_sparse", {"boundaries": [0, 4], "kept": 1}, "boundaries end at 4, but seqlen is 8"),
    ("variable_block_sparse", {"boundaries": [0, 5, 5, 8], "kept": 1}, "must ascend, but 5 is followed by 5"),
]


@pytest.mark.parametrize(("pattern", "factors", "words"), BAD)
def test_a_factor_that_does_not_fit_is_refused_with_its_limit(pattern, factors, words):
    with pytest.raises(MaskError, match=words) as caught:
        build(pattern, 8, **factors)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(MaskError, match=words):
        sample(pattern, 8, **factors)


@pytest.mark.parametrize("seqlen", [0, -1, 10**12, MAX_SEQLEN + 1, 8.0, "8", None, True])
@pytest.mark.parametrize("make", [build, sample])
def test_a_length_that_is_not_allowed_is_refused_before_anything_is_made(make, seqlen):
    says = f"seqlen is {seqlen!r}; (lengths from 1 to {MAX_SEQLEN}|give an integer)"
    tracemalloc.start()
    try:
        for pattern in ("causal", "causal_document", "uniform_block_sparse", "variable_block_sparse"):
            with pytest.raises(MaskError, match=says):
                make(pattern, seqlen)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_bitmap_beyond_any_memory_is_refused_before_it_is_made():
    tracemalloc.start()
    try:
        with pytest.raises(MaskError, match="take larger blocks or fewer heads"):
            build("uniform_block_sparse", MAX_SEQLEN, block=1, kept=0.5)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_unequal_lengths_are_refused_where_a_pattern_is_not_defined_for_them():
    with pytest.raises(MaskError, match="as many keys as queries, not 9 for 8; Sq ≠ Sk is for full, causal"):
        build("causal_document", 8, seqlen_k=9, documents=[8])
    with pytest.raises(MaskError, match="seqlen_k is 0"):
        build("causal", 8, seqlen_k=0)


def test_unknown_names_get_the_nearest_ones():
    with pytest.raises(UnknownNameError, match=r"unknown mask pattern 'casual'. Did you mean causal\?"):
        build("casual", 8)
    with pytest.raises(UnknownNameError, match="Did you mean causal_document"):
        sample("causal_documents", 8)
    with pytest.raises(
        UnknownNameError, match=r"unknown factor of causal_sliding_window 'windw'. Did you mean window\?"
    ):
        build("causal_sliding_window", 8, windw=3)
    with pytest.raises(UnknownNameError, match="unknown factor of causal 'x'"):
        sample("causal", 8, x=3)


def test_a_factor_of_another_pattern_is_refused_with_those_it_takes():
    with pytest.raises(MaskError, match="causal takes no factor 'window'; it takes no factors"):
        build("causal", 8, window=3)
    with pytest.raises(MaskError, match="prefix_lm_document takes no factor 'window'; it takes documents, prefix"):
        build("prefix_lm_document", 8, documents=[8], prefix=1, window=3)


@pytest.mark.parametrize("pattern", [p.name for p in PATTERNS.values() if set(p.factors) - set(p.defaults)])
def test_a_missing_factor_is_named_with_its_meaning(pattern):
    needed = [name for name in PATTERNS[pattern].factors if name not in PATTERNS[pattern].defaults]
    with pytest.raises(MaskError) as caught:
        build(pattern, 8)
    for name in needed:
        assert f"{name}: {FACTORS[name].meaning}" in str(caught.value)
    assert "masks.sample" in str(caught.value)


def test_factors_are_kept_in_one_canonical_type():
    mask = build("prefix_lm_document", np.int32(8), documents=np.array([5, 3], np.uint8), prefix=np.int64(2))
    assert mask.factors == {"documents": (5, 3), "prefix": 2}
    assert [type(x) for x in (*mask.factors["documents"], mask.factors["prefix"], mask.seqlen_q)] == [int] * 4
    assert build("causal_document", 8, documents=(n for n in (5, 3))).factors == {"documents": (5, 3)}
    assert build("uniform_block_sparse", 8, block=4, kept=np.float32(1)).factors["kept"] == 1
