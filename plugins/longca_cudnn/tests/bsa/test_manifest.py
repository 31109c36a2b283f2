"""The offers of cudnn_bsa, as if its library were installed."""

from __future__ import annotations

import pytest

from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca_cudnn import CUDNN_BSA

HERE = CUDNN_BSA.model_copy(update={"requires": ()})
HOPPER, BLACKWELL, GEFORCE = (Device("cuda", capability) for capability in ((9, 0), (10, 0), (12, 0)))
FORWARD, SHARED, HALF = {"direction": "forward"}, {"heads_kv": 2}, {"dtype": "float16"}


def resolve(mask, **options):
    common = {"heads_q": 8, "heads_kv": 8, "head_dim": 128, "device": HOPPER, "direction": "backward"}
    return resolve_manifest(HERE, Problem(mask=mask, allow_unverified=True, **{**common, **options}))


def uniform(block):
    return masks.build("uniform_block_sparse", 1024, block=block, kept=0.5, heads=8, seed=0)


VARIABLE = masks.build("variable_block_sparse", 203, boundaries=(0, 3, 64, 130, 203), kept=0.5, heads=8, seed=0)


@pytest.mark.parametrize(
    ("mask", "options", "taken"),
    [
        (uniform(64), {}, True),
        (uniform(128), {}, True),
        (uniform(80), {}, True),
        (VARIABLE, {}, True),
        (uniform(64), HALF, False),
        (uniform(64), {**HALF, **FORWARD}, True),
        (uniform(64), SHARED, False),
        (uniform(64), {**SHARED, **FORWARD}, True),
        (uniform(64), {"head_dim": 64}, False),
        (uniform(64), {"head_dim": 96, **FORWARD}, True),
        (uniform(64), {"deterministic": True}, False),
        (uniform(64), {"deterministic": True, **FORWARD}, True),
        (uniform(64), {"device": BLACKWELL}, True),
        (uniform(64), {"device": BLACKWELL, **SHARED, **FORWARD}, False),
        (uniform(128), {"device": BLACKWELL, **SHARED, **FORWARD}, True),
        (uniform(128), {"device": BLACKWELL, "head_dim": 64}, True),
        (uniform(64), {"device": GEFORCE}, False),
        (uniform(64), {"device": GEFORCE, **SHARED, **FORWARD}, True),
        (uniform(64), {"device": Device("cuda", (8, 0))}, False),
        (masks.build("causal", 1024), {}, False),
    ],
)
def test_limits(mask, options, taken):
    assert resolve(mask, **options).valid == taken
