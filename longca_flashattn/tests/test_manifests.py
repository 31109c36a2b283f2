"""The offers and refusals of the manifests, before anything runs."""

from dataclasses import replace

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.manifests import packages, resolve_manifest
from longca.manifests.pairs import halves
from longca.masks import BlockSparseMask, Form, Slice, SliceMask
from longca_flashattn import FA3, FA4
from longca_flashattn.fa4 import FlashAttention4

H200 = Device("cuda", (9, 0), 140 * 2**30, "H200")


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Makes every package look installed."""
    monkeypatch.setattr("longca.manifests.resolve.missing", lambda requirement: None)


@pytest.fixture
def installed(monkeypatch):
    """The distributions that look installed, with their versions. A test fills it."""
    versions = {}
    monkeypatch.setattr("longca.manifests.resolve.missing", packages.missing)
    monkeypatch.setattr(packages, "installed_version", versions.get)
    packages.missing.cache_clear()
    yield versions
    packages.missing.cache_clear()


def problem(mask, **changes):
    asked = {"heads_q": 8, "heads_kv": 1, "head_dim": 128, "dtype": "bfloat16", "direction": "backward"}
    return Problem(**{"mask": mask, "device": H200, **asked, **changes})


@pytest.mark.parametrize(
    ("kept", "form"),
    [
        (np.ones((8, 4, 4)), Form.FULL),
        (np.ones((1, 4, 4)), Form.FULL),
        (np.eye(4)[None], Form.VARLEN),
        (np.eye(4)[None, ::-1], Form.BLOCK_SPARSE),
        (np.stack([np.eye(4)] * 8), Form.BLOCK_SPARSE),
    ],
)
def test_fa4_plans_a_block_sparse_mask_in_the_form_of_the_offer_that_covers_it(monkeypatch, kept, form):
    monkeypatch.setattr("longca_flashattn.fa4.version", lambda: "4")
    mask = BlockSparseMask(kept.astype(np.bool_), range(0, 513, 128), range(0, 513, 128))
    asked = problem(mask)
    assert resolve_manifest(FA4, asked).offer.form is form
    assert FlashAttention4().plan(replace(asked, device=Device("cpu"))).form is form


def test_fa3_computes_the_forward_of_unequal_head_dims_and_fa4_both_directions():
    mask = masks.build("causal_document", 300, documents=[100, 200])
    asked = problem(mask, heads_kv=8, head_dim=192, head_dim_v=128)
    assert resolve_manifest(FA4, asked).valid
    assert resolve_manifest(FA3, halves(asked)[0]).valid
    assert not resolve_manifest(FA3, asked).valid
    assert not resolve_manifest(FA4, replace(asked, heads_kv=1)).valid
    assert not resolve_manifest(FA4, replace(asked, head_dim_v=96)).valid


def test_keys_with_too_many_intervals_have_no_backward():
    stripes = SliceMask([Slice(q, q + 10, 0, 300, hi=5) for q in range(0, 300, 20)], 300, 300)
    forward = problem(stripes, direction="forward")
    assert resolve_manifest(FA4, forward).valid
    assert [reason.code for reason in resolve_manifest(FA4, problem(stripes)).reasons] == ["form"]


@pytest.mark.parametrize(
    ("version", "runs"), [("4.6.0", False), ("4.6.1", False), ("4.6.2", True), ("4.8.1", True), ("4.9.0.dev0", True)]
)
def test_fa4_refuses_the_dsl_with_which_its_backward_hangs(installed, version, runs):
    installed.update({"flash-attn-4": "4.0.0b36", "nvidia-cutlass-dsl": version})
    verdict = resolve_manifest(FA4, problem(masks.build("causal", 500)))
    assert verdict.valid is runs
    if not runs:
        reason = f"needs nvidia-cutlass-dsl>=4.6.2; nvidia-cutlass-dsl {version} is installed"
        assert reason in str(verdict.reasons[0])


@pytest.mark.parametrize(
    ("versions", "runs"),
    [
        ({"xformers": "0.0.34"}, True),
        ({"xformers": "0.0.35"}, False),
        ({"xformers": "0.0.35", "flash-attn-3": "3.0.0"}, True),
    ],
)
def test_fa3_refuses_wheels_of_xformers_without_its_operators(installed, versions, runs):
    installed.update(versions)
    verdict = resolve_manifest(FA3, problem(masks.build("causal", 500)))
    assert verdict.valid is runs
    if not runs:
        assert "xformers 0.0.35 is installed" in str(verdict.reasons[0])
