"""fa3_sparse has a forward alone. With the backward of bsa it is a kernel for training."""

from __future__ import annotations

import pytest

from longca import Device, Problem, masks, registry

H200 = Device("cuda", (9, 0), 140 * 2**30, "NVIDIA H200")
PAIR = "fa3_sparse+bsa"


def uniform(block, heads):
    return masks.build("uniform_block_sparse", 3000, block=block, kept=0.5, heads=heads, seed=1)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Makes every package look installed."""
    monkeypatch.setattr("longca.manifests.resolve.missing", lambda requirement: None)


def asked(mask, **changes):
    common = {
        "heads_q": 64,
        "heads_kv": 8,
        "head_dim": 128,
        "device": H200,
        "direction": "backward",
        "allow_unverified": True,
    }
    return Problem(**{"mask": mask, **common, **changes})


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("block", [64, 100, 128])
def test_the_pair_trains(block, heads, composed):
    verdict = registry().resolve(PAIR, asked(uniform(block, heads), composed=composed, deterministic=True))
    assert verdict.valid, verdict.reasons


def test_a_half_that_refuses_is_named():
    verdict = registry().resolve(PAIR, asked(uniform(64, 64)))
    assert ["forward half" in reason.offered for reason in verdict.reasons] == [True]
    verdict = registry().resolve(PAIR, asked(uniform(64, 8), head_dim=96))
    assert ["backward half" in reason.offered for reason in verdict.reasons] == [True]
