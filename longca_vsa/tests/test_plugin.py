"""The kernels of other people's libraries as LongCA sees them, with and without these libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca_vsa import FA2_SPARSE, VSA, VSA_TRITON, supports_mask

H200 = Device("cuda", (9, 0))
MANIFESTS = {manifest.name: manifest for manifest in (VSA, VSA_TRITON, FA2_SPARSE)}


def uniform(block, seqlen=1000, heads=1):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.5, heads=heads)


def asked(mask, heads=(8, 8), name="", **options):
    direction = "forward" if name == "vsa_triton" else "backward"  # which offers no backward
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=H200, **{"direction": direction, **options})


def codes(name, problem):
    """The reasons against a problem if the kernel's library is installed."""
    found = resolve_manifest(MANIFESTS[name].model_copy(update={"requires": ()}), problem)
    return codes_of_veto(name, problem) if found else [reason.code for reason in found.reasons]


def codes_of_veto(name, problem):
    verdict = supports_mask(name, problem)
    return [] if verdict is None else [reason.code for reason in verdict.reasons]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("vsa", {"heads": (8, 2)}, ["gqa"]),
        ("vsa_triton", {"heads": (8, 2)}, ["gqa"]),
        ("fa2_sparse", {"heads": (8, 2)}, []),
        ("vsa", {"dtype": "float16"}, ["dtype"]),
        ("fa2_sparse", {"dtype": "float16"}, []),
        ("vsa", {"head_dim": 256}, ["head_dim"]),
        ("fa2_sparse", {"head_dim": 32}, []),
        ("vsa", {"softmax_scale": 0.1}, ["form"]),
        ("vsa_triton", {"softmax_scale": 128**-0.5}, []),
        ("fa2_sparse", {"softmax_scale": 0.1}, []),
        ("vsa", {"deterministic": True}, ["deterministic"]),
    ],
)
def test_limits(name, options, expected):
    block = 128 if name == "fa2_sparse" else 64
    assert codes(name, asked(uniform(block), name=name, **options)) == expected


@pytest.mark.parametrize("name", MANIFESTS)
def test_lists_that_32_bits_cannot_count_are_refused(name):
    block = 128 if name == "fa2_sparse" else 64
    mask = uniform(block, seqlen=256 * block)
    for heads, refused in ((2**15 - 1, []), (2**15, ["lengths"])):
        assert codes(name, asked(mask, heads=(heads, heads), name=name, head_dim=64)) == refused


def test_the_triton_backward_is_refused_and_its_forward_is_half_of_a_pair():
    backward = asked(uniform(64))
    assert codes("vsa_triton", backward) == ["direction"]
    assert codes("vsa_triton", replace(backward, direction="forward")) == []
