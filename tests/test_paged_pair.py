"""fa3_sparse has a forward alone. With the backward of bsa it is a kernel for training."""

from __future__ import annotations

import pytest

from longca import Device, Problem, masks, registry
from longca_flashattn import FA3_SPARSE
from longca_vsa import BSA

H200 = Device("cuda", (9, 0), 140 * 2**30, "NVIDIA H200")
(OFFER,) = FA3_SPARSE.offers
VERIFIED = FA3_SPARSE.model_copy(update={"offers": (OFFER.model_copy(update={"verified_on": OFFER.expected_on}),)})


def uniform(block, heads):
    return masks.build("uniform_block_sparse", 3000, block=block, kept=0.5, heads=heads, seed=1)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Makes every package look installed."""
    monkeypatch.setattr("longca.manifests.resolve.missing", lambda requirement: None)


def asked(mask, **changes):
    common = {"heads_q": 64, "heads_kv": 8, "head_dim": 128, "device": H200, "direction": "backward"}
    return Problem(**{"mask": mask, **common, **changes})


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("block", [64, 100, 128])
def test_the_pair_trains(block, heads, composed):
    verdict = registry().resolve((VERIFIED, BSA), asked(uniform(block, heads), composed=composed, deterministic=True))
    assert verdict.valid, verdict.reasons


def test_a_half_that_refuses_is_named():
    verdict = registry().resolve((VERIFIED, BSA), asked(uniform(64, 64)))
    assert ["forward half" in reason.offered for reason in verdict.reasons] == [True]
    verdict = registry().resolve((VERIFIED, BSA), asked(uniform(64, 8), head_dim=96))
    assert ["backward half" in reason.offered for reason in verdict.reasons] == [True]
