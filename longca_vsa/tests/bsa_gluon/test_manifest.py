"""bsa_gluon as LongCA sees it: its offer, and the masks and heads that do not fill its tiles."""

from __future__ import annotations

import pytest

from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca_vsa.bsa_gluon import BSA_GLUON

ALONE = BSA_GLUON.model_copy(update={"requires": ()})  # Triton need not be installed
HOPPER = Device("cuda", (9, 0))


def codes(mask, heads=(16, 2), **options):
    """The reasons against a problem."""
    problem = Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{"device": HOPPER, **options})
    return [reason.code for reason in resolve_manifest(ALONE, problem).reasons]


def uniform(block, heads=1, seqlen=1000):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.5, heads=heads)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mask": uniform(32)}, ["form"]),
        ({"mask": uniform(100)}, ["form"]),
        ({"mask": uniform(64, seqlen=60)}, ["form"]),
        ({"mask": masks.build("variable_block_sparse", 1000, boundaries=(0, 64, 500, 1000), kept=0.5)}, ["form"]),
        ({"mask": masks.build("causal", 1000)}, ["form"]),
        ({"mask": masks.PATTERNS["uniform_block_sparse"]}, []),
        ({"dtype": "float32"}, ["dtype"]),
        ({"dtype": "float16", "deterministic": True, "softmax_scale": 0.3}, []),
        ({"head_dim": 64}, ["head_dim"]),
        ({"direction": "backward"}, ["direction"]),
        ({"device": Device("cuda", (10, 0))}, ["device"]),
        ({"device": Device("cpu")}, ["device"]),
    ],
)
def test_limits(options, expected):
    assert codes(**{"mask": uniform(64), **options}) == expected


@pytest.mark.parametrize(
    ("block", "mask_heads", "heads", "expected"),
    [
        (64, 1, (2, 1), []),
        (64, 1, (64, 1), []),
        (64, 1, (128, 1), ["mask_heads"]),
        (64, 1, (6, 2), ["mask_heads"]),
        (64, 1, (8, 8), ["mask_heads"]),  # 64 rows, half a tile
        (64, 16, (16, 2), ["mask_heads"]),  # no head shares its mask
        (128, 16, (16, 2), []),
        (128, 3, (3, 3), []),
    ],
)
def test_rows_fill_tiles(block, mask_heads, heads, expected):
    assert codes(uniform(block, mask_heads), heads) == expected
