"""The offers of cudnn_flex, as if its library were installed."""

from __future__ import annotations

import pytest

from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca.masks import Form
from longca_cudnn import CUDNN_FLEX, supports_mask

HERE = CUDNN_FLEX.model_copy(update={"requires": ()})
H200 = Device("cuda", (9, 0))


def asked(mask, **options):
    common = {"heads_q": 64, "heads_kv": 8, "head_dim": 128, "device": H200, "direction": "backward"}
    return Problem(mask=mask, **{**common, "allow_unverified": True, **options})


def resolve(problem):
    return resolve_manifest(HERE, problem)


@pytest.mark.parametrize("pattern", [name for name, pattern in masks.PATTERNS.items() if not pattern.per_head])
def test_every_static_pattern_is_taken_as_intervals(pattern):
    for mask in (masks.PATTERNS[pattern], masks.sample(pattern, 4096, seed=0)):
        found = resolve(asked(mask))
        assert found.offer is not None
        assert found.offer.form is Form.ROW_INTERVALS


@pytest.mark.parametrize("heads", [1, 8, 64])
def test_masks_of_heads(heads):
    for pattern, block in (("uniform_block_sparse", 64), ("uniform_block_sparse", 96)):
        mask = masks.build(pattern, 2048, block=block, kept=0.5, heads=heads, seed=0)
        found = resolve(asked(mask))
        assert found.offer is not None
        assert found.offer.form is (Form.ROW_INTERVALS if heads == 1 else Form.BLOCK_SPARSE)


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"head_dim": 8}, []),
        ({"head_dim": 256}, []),
        ({"head_dim": 192}, ["head_dim"]),
        ({"head_dim": 100}, ["head_dim"]),
        ({"dtype": "float16", "deterministic": True}, []),
        ({"dtype": "float32"}, ["dtype"]),
        ({"device": Device("cuda", (10, 0))}, []),
        ({"device": Device("cuda", (10, 3))}, []),
        ({"device": Device("cuda", (10, 1))}, ["device"]),
        ({"device": Device("cuda", (12, 0))}, ["device"]),
        ({"device": Device("cuda", (8, 0))}, ["device"]),
    ],
)
def test_limits(options, codes):
    reasons = resolve(asked(masks.build("causal", 4096), **options)).reasons
    assert [reason.code for reason in reasons if reason.code != "unverified"] == codes


@pytest.mark.parametrize(("capability", "codes"), [((9, 0), []), ((10, 0), ["unverified"]), ((8, 0), ["device"])])
def test_it_is_verified_on_hopper_alone(capability, codes):
    problem = asked(masks.build("causal", 4096), allow_unverified=False, device=Device("cuda", capability))
    assert [reason.code for reason in resolve(problem).reasons] == codes


@pytest.mark.parametrize(("seqlen", "heads", "refused"), [(32768, 64, False), (65536, 64, True), (131072, 1, False)])
def test_a_table_for_each_head_has_a_limit(seqlen, heads, refused):
    mask = masks.build("uniform_block_sparse", seqlen, block=64, kept=0.01, heads=heads, seed=0)
    verdict = supports_mask("cudnn_flex", asked(mask))
    assert (verdict is not None) == refused
    if verdict is not None:
        (reason,) = verdict.reasons
        assert reason.code == "lengths"
        assert reason.advice == "Try bsa."
