"""The kernels as LongCA sees them, with and without FlashInfer."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import longca_flashinfer
from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca.masks import BlockSparseMask
from longca_flashinfer import FLASHINFER_FA2, FLASHINFER_FA3, supports_mask

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
MANIFESTS = {manifest.name: manifest for manifest in (FLASHINFER_FA2, FLASHINFER_FA3)}
H200 = Device("cuda", (9, 0))


def asked(mask, heads=(8, 2), **options):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{"device": H200, **options})


def codes(name, problem):
    """The codes of the reasons against a problem, with FlashInfer installed."""
    found = resolve_manifest(MANIFESTS[name].model_copy(update={"requires": ()}), problem)
    return codes_of_veto(name, problem) if found else [reason.code for reason in found.reasons]


def codes_of_veto(name, problem):
    verdict = supports_mask(name, problem)
    return [] if verdict is None else [reason.code for reason in verdict.reasons]


def uniform(heads=1, block=64, seqlen=1000):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.5, heads=heads)


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (uniform(), []),
        (uniform(2), []),
        (uniform(8), ["mask_heads"]),
        (uniform(block=16), []),
        (masks.build("variable_block_sparse", 1000, boundaries=(0, 64, 500, 1000), kept=0.5, heads=2), []),
        (uniform(2).cut([(0, 100)], [(0, 1000)]), []),
        (masks.build("causal", 1000), ["form"]),
        (masks.PATTERNS["variable_block_sparse"], []),
    ],
)
def test_masks(name, mask, expected):
    assert codes(name, asked(mask)) == expected


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("flashinfer_fa2", {"device": Device("cuda", (8, 0))}, ["unverified"]),
        ("flashinfer_fa2", {"device": Device("cuda", (12, 1)), "allow_unverified": True}, []),
        ("flashinfer_fa3", {"device": Device("cuda", (8, 0))}, ["device"]),
        ("flashinfer_fa3", {"direction": "backward"}, ["direction"]),
        ("flashinfer_fa3", {"dtype": "float16"}, []),
        ("flashinfer_fa3", {"dtype": "float32"}, ["dtype"]),
        ("flashinfer_fa2", {"head_dim": 96}, ["head_dim"]),
        ("flashinfer_fa2", {"softmax_scale": 0.3}, []),
    ],
)
def test_limits(name, options, expected):
    assert codes(name, asked(uniform(), **options)) == expected


def test_lists_that_32_bits_cannot_count_are_refused():
    everything = BlockSparseMask([[[True] * 2] * 4], [0, 1, 2, 3, 2**18], [0, 1, 2**27])
    some = BlockSparseMask([[[True, False]] * 4], [0, 1, 2, 3, 2**18], [0, 1, 2**27])
    options = {"heads": (4, 4), "head_dim": 1}
    for name in MANIFESTS:
        assert codes_of_veto(name, asked(everything, **options)) == ["lengths"]
        assert codes_of_veto(name, asked(some, **options)) == []


def test_tensors_that_32_bits_cannot_count_are_refused():
    for seqlen, expected in ((2**18 - 1, []), (2**18, ["lengths"])):
        mask = BlockSparseMask([[True]], [0, seqlen], [0, seqlen])
        assert codes_of_veto("flashinfer_fa2", asked(mask, (64, 8))) == expected


def test_the_extra_is_what_the_manifests_require():
    extra = tuple(PYPROJECT["project"]["optional-dependencies"]["flashinfer"])
    assert extra == FLASHINFER_FA2.requires == FLASHINFER_FA3.requires


def test_the_entry_point_is_the_package():
    assert PYPROJECT["project"]["entry-points"]["longca"] == {"flashinfer": longca_flashinfer.__name__}
