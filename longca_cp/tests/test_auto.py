"""The placements of least nominal cost for four ranks, 32 K tokens, a kernel of layers and a kernel of intervals."""

import pytest

from longca import masks, registry
from longca.errors import UnsupportedError
from longca.manifests import KernelManifest, Offer
from longca_advice.nominal import nominal_cost

from .cases import problem

SEQLEN, RANKS = 32768, 4
DOCUMENTS = (9000, 300, 5000, 70, 10000, 8398)
FACTORS = {
    "full": {},
    "causal": {},
    "full_sliding_window": {"window": 1024},
    "causal_sliding_window": {"window": 1024},
    "full_document": {"documents": DOCUMENTS},
    "causal_document": {"documents": DOCUMENTS},
    "block_causal_document": {"documents": DOCUMENTS, "block": 1024},
    "prefix_lm_causal": {"prefix": 12000},
    "prefix_lm_document": {"documents": DOCUMENTS, "prefix": 2000},
    "shared_question": {"documents": DOCUMENTS},
    "global_sliding_window": {"window": 1024, "global_tokens": 1500},
    "causal_blockwise": {"documents": DOCUMENTS},
}


def kernel(name, *forms):
    common = {
        "dtypes": ("bfloat16",),
        "verified_on": "==9.0",
        "unequal_lengths": True,
        "backward": "external",
        "metadata": "O(S)",
    }
    return KernelManifest(
        name=name,
        title=name,
        upstream="-",
        license="MIT",
        family="fake",
        implementation="fake:Fake",
        offers=tuple(Offer(**common, **form) for form in forms),
    )


NATIVE = tuple({"form": form} for form in ("full", "causal", "window", "varlen"))
#: As FlashAttention-3: the masks that it knows, and others as up to three layers.
LAYERED = kernel("layered", *NATIVE, {"form": "layers", "most": 3})
#: As FlashAttention-4: the masks that it knows, and others by intervals.
INTERVALS = kernel("intervals", *NATIVE, {"form": "row_intervals", "most": 8})


def asked(pattern):
    return problem(masks.build(pattern, SEQLEN, **FACTORS[pattern]), 64, 8, direction="backward")


def choice(strategy, manifest, pattern, sizes):
    problem, found = asked(pattern), {}
    for placement in registry().strategy(strategy).placements:
        try:
            layout = registry().layout(strategy, problem, sizes, placement)
            registry().resolve([manifest], problem, layout).check()
        except UnsupportedError:
            continue
        found[placement] = nominal_cost([manifest], problem, layout)
    return min(found, key=found.get, default=None)


COLUMNS = [
    (strategy, sizes, manifest)
    for strategy, sizes in (
        ("ring_p2p", {"ring": RANKS}),
        ("ring_all_gather", {"ring": RANKS}),
        ("usp", {"ring": 2, "ulysses": 2}),
    )
    for manifest in (LAYERED, INTERVALS)
]
C, Z, D, B, W = "contiguous", "zigzag", "zigzag_document", "balanced", "whole_documents"
CHOICES = {
    "full": (C, C, C, C, C, C),
    "causal": (Z, Z, Z, Z, Z, Z),
    "full_sliding_window": (C, C, C, C, C, C),
    "causal_sliding_window": (C, C, C, C, C, C),
    "full_document": (D, D, B, B, B, B),
    "causal_document": (D, D, D, Z, D, D),
    "block_causal_document": (D, B, W, B, D, B),
    "prefix_lm_causal": (Z, Z, B, B, Z, B),
    "prefix_lm_document": (C, D, W, B, B, B),
    "shared_question": (D, D, B, B, B, B),
    "global_sliding_window": (B, B, B, B, B, B),
    "causal_blockwise": (D, D, B, B, D, B),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("column", range(len(COLUMNS)))
@pytest.mark.parametrize("pattern", FACTORS)
def test_the_choice(pattern, column):
    strategy, sizes, manifest = COLUMNS[column]
    assert choice(strategy, manifest, pattern, sizes) == CHOICES[pattern][column]
