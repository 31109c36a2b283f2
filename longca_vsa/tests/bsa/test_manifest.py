"""bsa as LongCA sees it: one offer for every block-sparse mask, and its limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca_vsa.bsa import BSA

ALONE = BSA.model_copy(update={"requires": ()})  # Triton need not be installed
AMPERE = Device("cuda", (8, 0))


def codes(mask, heads=(8, 2), **options):
    """The reasons against a problem."""
    problem = Problem(
        **{
            "mask": mask,
            "heads_q": heads[0],
            "heads_kv": heads[1],
            "device": AMPERE,
            "direction": "backward",
            "deterministic": True,
            "allow_unverified": True,
            **options,
        }
    )
    return [reason.code for reason in resolve_manifest(ALONE, problem).reasons]


def uniform(block, heads):
    return masks.build("uniform_block_sparse", 1000, block=block, kept=0.5, heads=heads)


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("block", [1, 16, 64, 100, 256])
def test_blocks_of_every_size(block, heads):
    assert codes(uniform(block, heads)) == []
    assert codes(uniform(block, heads).cut([(7, 500)], [(30, 1000)])) == []


def test_variable_blocks():
    mask = masks.build("variable_block_sparse", 1000, boundaries=(0, 3, 500, 1000), kept=0.5, heads=2)
    assert codes(mask) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "float32"}, ["dtype"]),
        ({"head_dim": 96}, ["head_dim"]),
        ({"device": Device("cuda", (7, 5))}, ["device"]),
        ({"device": Device("cpu")}, ["device"]),
        ({"heads": (3, 3), "mask": uniform(64, 3)}, []),
        ({"allow_unverified": False}, ["unverified"]),
        ({"allow_unverified": False, "device": Device("cuda", (9, 0))}, []),
        ({"dtype": "float16", "head_dim": 256, "softmax_scale": 0.3}, []),
    ],
)
def test_limits(options, expected):
    assert codes(**{"mask": uniform(64, 2), **options}) == expected


def test_other_masks_are_refused():
    assert codes(masks.build("causal", 1000)) == ["form"]


def test_the_manifest_brings_neither_torch_nor_triton():
    listing = "import sys, longca_vsa.bsa; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
