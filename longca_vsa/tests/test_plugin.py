"""The kernels of other people's libraries as LongCA sees them, with and without these libraries."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import longca_vsa
from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca_vsa import FA2_SPARSE, VSA, VSA_TRITON, supports_mask

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
H200 = Device("cuda", (9, 0))
MANIFESTS = {manifest.name: manifest for manifest in (VSA, VSA_TRITON, FA2_SPARSE)}


def uniform(block, seqlen=1000, heads=1):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=0.5, heads=heads)


def asked(mask, heads=(8, 8), name="", **options):
    direction = "forward" if name == "vsa_triton" else "backward"
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=H200, **{"direction": direction, **options})


def codes(name, problem):
    """The reasons against a problem if the kernel's library is installed."""
    found = resolve_manifest(MANIFESTS[name].model_copy(update={"requires": ()}), problem)
    return codes_of_veto(name, problem) if found else [reason.code for reason in found.reasons]


def codes_of_veto(name, problem):
    verdict = supports_mask(name, problem)
    return [] if verdict is None else [reason.code for reason in verdict.reasons]


@pytest.mark.parametrize("name", MANIFESTS)
def test_masks(name):
    mine, other = (64, 128) if name != "fa2_sparse" else (128, 64)
    for heads in (1, 8):
        assert codes(name, asked(uniform(mine, heads=heads), name=name)) == []
    assert codes(name, asked(uniform(other), name=name)) == ["form"]
    assert codes(name, asked(masks.build("causal", 1000), name=name)) == ["form"]
    variable = masks.build("variable_block_sparse", 1000, boundaries=(0, 64, 500, 1000), kept=0.5)
    assert codes(name, asked(variable, name=name)) == ["form"]
    assert codes(name, asked(masks.PATTERNS["uniform_block_sparse"], name=name)) == []
    assert codes(name, asked(uniform(mine).cut([(0, 3 * mine)], [(0, 1000)]), name=name)) == []


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


def test_devices():
    problem = Problem(mask=uniform(64), heads_q=8, device=Device("cuda", (8, 0)))
    assert codes("vsa", problem) == ["device"]
    assert codes("vsa_triton", problem) == ["unverified"]
    assert codes("vsa_triton", replace(problem, allow_unverified=True)) == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_lists_that_32_bits_cannot_count_are_refused(name):
    block = 128 if name == "fa2_sparse" else 64
    most = 2**31 // (block * 2)  # blocks on either side, of two heads: as many as there may be, and one more
    for rows, refused in ((block - 1, []), (block, ["lengths"])):
        mask = masks.BlockSparseMask([[True]], [0, rows * block], [0, most * block])
        assert codes_of_veto(name, asked(mask, heads=(2, 2), name=name, head_dim=64)) == refused


def test_the_triton_backward_is_refused_and_its_forward_is_half_of_a_pair():
    backward = asked(uniform(64))
    assert codes_of_veto("vsa_triton", backward) == ["direction"]
    assert codes_of_veto("vsa_triton", replace(backward, direction="forward")) == []


def test_nothing_is_said_of_other_kernels():
    assert supports_mask("bsa", asked(uniform(64), softmax_scale=0.1)) is None


def test_the_extra_is_what_the_manifests_require():
    extra = tuple(PYPROJECT["project"]["optional-dependencies"]["fastvideo"])
    assert extra == VSA.requires[:-1] == VSA_TRITON.requires[:-1]


def test_block_pointers_are_gone_from_newer_tritons():
    (triton,) = set(VSA_TRITON.requires) - set(VSA.requires)
    needed = Requirement(triton)
    assert (needed.name, "3.8.0" in needed.specifier, "3.9.0" in needed.specifier) == ("triton", True, False)
    assert triton in VSA_TRITON.install


def test_the_entry_point_is_the_package():
    assert PYPROJECT["project"]["entry-points"]["longca"] == {"vsa": longca_vsa.__name__}
