"""The offers of cudnn_flex, as if its library were installed."""

from __future__ import annotations

import pytest

from longca import Device, Problem, masks, registry

H200 = Device("cuda", (9, 0))


def asked(mask, **options):
    common = {"heads_q": 64, "heads_kv": 8, "head_dim": 128, "device": H200, "direction": "backward"}
    return Problem(mask=mask, **{**common, "allow_unverified": True, **options})


@pytest.mark.parametrize(("seqlen", "heads", "refused"), [(32768, 64, False), (65536, 64, True), (131072, 1, False)])
def test_a_table_for_each_head_has_a_limit(seqlen, heads, refused):
    mask = masks.build("uniform_block_sparse", seqlen, block=64, kept=0.01, heads=heads, seed=0)
    verdict = registry().resolve("cudnn_flex", asked(mask))
    assert ("lengths" in {reason.code for reason in verdict.reasons}) == refused
