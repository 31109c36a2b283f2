"""The offers and refusals of the manifests, before anything runs."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.manifests import packages, resolve_manifest
from longca.masks import BlockSparseMask, Form, Slice, SliceMask
from longca_flashattn import FA2, FA3, FA3_SPARSE, FA4, supports_mask
from longca_flashattn.fa4 import FlashAttention4

H200 = Device("cuda", (9, 0), 140 * 2**30, "H200")
EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


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


@pytest.mark.parametrize("pattern", [name for name in masks.PATTERNS if not name.endswith("block_sparse")])
def test_fa4_takes_every_static_mask(pattern):
    asked = problem(masks.sample(pattern, seqlen=5000, lengths="pile", seed=1))
    assert resolve_manifest(FA4, asked).valid
    assert supports_mask("fa4", asked) is None


@pytest.mark.parametrize("mask_heads", [1, 4, 8])
@pytest.mark.parametrize(
    ("block", "blocks"), [(16, None), (64, None), (100, None), (128, (128, 256)), (256, (128, 256))]
)
def test_fa4_takes_block_sparse_masks_of_all_blocks(block, blocks, mask_heads):
    mask = masks.build("uniform_block_sparse", 3000, block=block, kept=0.5, heads=mask_heads, seed=1)
    for changes in ({}, {"head_dim": 64, "dtype": "float16"}):
        asked = problem(mask, heads_kv=4, **changes)
        offer = resolve_manifest(FA4, asked).offer
        assert offer.form is Form.BLOCK_SPARSE
        assert offer.block_sizes == blocks
        assert supports_mask("fa4", asked) is None
    assert resolve_manifest(FA4, problem(mask, heads_kv=4, deterministic=True)).reasons


def test_fa4_takes_variable_blocks():
    mask = masks.build("variable_block_sparse", 3000, boundaries=(0, 70, 900, 1000, 3000), kept=0.5, heads=8, seed=1)
    assert resolve_manifest(FA4, problem(mask)).offer.variable_blocks


BLOCKS = masks.build("uniform_block_sparse", 3000, block=64, kept=0.5, heads=4, seed=1)
UNEQUAL = masks.build("variable_block_sparse", 3000, boundaries=(0, 70, 900, 1000, 3000), kept=0.5, heads=4, seed=1)


@pytest.mark.parametrize(
    ("mask", "changes", "code"),
    [
        (BLOCKS, {}, None),
        (BLOCKS, {"composed": True, "deterministic": True, "head_dim": 256, "dtype": "float16"}, None),
        (UNEQUAL, {}, None),
        (BLOCKS.cut([(0, 512)], [(0, 900)]), {}, None),
        (BLOCKS, {"direction": "backward"}, "direction"),
        (BLOCKS, {"dtype": "float32"}, "dtype"),
        (BLOCKS, {"head_dim": 36}, "head_dim"),
        (BLOCKS, {"head_dim": 264}, "head_dim"),
        (BLOCKS, {"heads_q": 4, "heads_kv": 2}, "mask_heads"),
        (masks.build("causal", 500), {}, "form"),
    ],
)
def test_fa3_sparse_is_a_forward_of_blocks(mask, changes, code):
    asked = problem(mask, **{"heads_kv": 4, "direction": "forward", **changes})
    verdict = resolve_manifest(FA3_SPARSE, asked)
    assert [reason.code for reason in verdict.reasons] == ([] if code is None else [code])


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


@pytest.mark.parametrize(
    ("manifest", "changes", "code"),
    [
        (FA2, {"dtype": "float32"}, "dtype"),
        (FA3, {"head_dim": 264}, "head_dim"),
        (FA4, {"head_dim": 192}, "head_dim"),
        (FA3, {"device": Device("cuda", (8, 0), 2**36, "A100")}, "device"),
        (FA4, {"device": Device("cuda", (10, 0), 2**37, "B200")}, "unverified"),
        (FA4, {"device": Device("cuda", (12, 0), 2**35, "RTX 5090")}, "device"),
        (FA2, {"device": Device("cuda", (8, 9), 2**35, "L40S")}, "unverified"),
        (FA2, {"device": Device("cuda", (8, 9)), "head_dim": 200, "allow_unverified": True}, "head_dim"),
        (FA2, {"device": Device("cpu")}, "device"),
    ],
)
def test_what_is_refused_and_why(manifest, changes, code):
    verdict = resolve_manifest(manifest, problem(masks.build("causal", 500), **changes))
    assert code in {reason.code for reason in verdict.reasons}


@pytest.mark.parametrize(
    ("manifest", "capability", "head_dim"),
    [(FA2, (8, 0), 256), (FA2, (8, 6), 192), (FA2, (10, 3), 256), (FA2, (12, 1), 192), (FA4, (10, 3), 128)],
)
def test_other_devices_are_expected(manifest, capability, head_dim):
    asked = {"device": Device("cuda", capability), "head_dim": head_dim, "allow_unverified": True}
    verdict = resolve_manifest(manifest.model_copy(update={"requires": ()}), problem(masks.build("causal", 9), **asked))
    assert verdict.unverified


def test_deterministic_gradients():
    assert resolve_manifest(FA4, problem(masks.build("causal", 500), deterministic=True)).valid
    shared = masks.build("shared_question", 500, documents=[100, 200, 200])
    verdict = resolve_manifest(FA4, problem(shared, deterministic=True))
    assert [reason.code for reason in verdict.reasons] == ["deterministic"]
    assert resolve_manifest(FA3, problem(shared, deterministic=True)).valid


@pytest.mark.parametrize(("block", "layers"), [(1200, 3), (1024, 4), (33, 8), (32, 9)])
def test_eight_layers_are_taken(block, layers):
    many = masks.build("block_causal_document", 8192, documents=[8192], block=block)
    assert many.count(Form.LAYERS) == layers
    for manifest in (FA2, FA3):
        manifest = manifest.model_copy(update={"requires": ()})
        assert resolve_manifest(manifest, problem(many)).valid == (layers <= 8)
    assert resolve_manifest(FA4, problem(many)).valid


def test_keys_with_too_many_intervals_are_vetoed():
    stripes = SliceMask([Slice(q, q + 10, 0, 300, hi=5) for q in range(0, 300, 20)], 300, 300)
    forward = problem(stripes, direction="forward")
    assert resolve_manifest(FA4, forward).valid
    assert supports_mask("fa4", forward) is None
    veto = supports_mask("fa4", problem(stripes))
    assert veto is not None
    assert not veto.valid
    assert "15 intervals" in str(veto.reasons[0])
    assert supports_mask("fa3", problem(stripes)) is None


def test_a_missing_library_is_named_with_the_line_that_installs_it(installed):
    verdict = resolve_manifest(FA3, problem(masks.build("causal", 500)))
    assert "needs flash-attn-3>=3.0.0 or xformers==0.0.34" in str(verdict.reasons[0])
    assert "pip install --no-deps xformers" in str(verdict.reasons[0])
    verdict = resolve_manifest(FA4, problem(masks.build("causal", 500)))
    assert "pip install 'longca-flashattn[fa4]'" in str(verdict.reasons[0])


def test_the_extra_is_what_fa4_requires():
    assert tuple(EXTRAS["fa4"]) == FA4.requires


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
