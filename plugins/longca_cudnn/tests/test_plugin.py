"""The plugin as LongCA sees it, with and without cuDNN's frontend."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import longca_cudnn
from longca import Device, Problem, masks
from longca.manifests import resolve_manifest
from longca.masks import Form
from longca_cudnn import CUDNN, CUDNN_BSA, CUDNN_FLEX, supports_mask

HERE = CUDNN.model_copy(update={"requires": ()})  # as if the frontend were installed
H200 = Device("cuda", (9, 0))
PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))


def resolve(mask, manifest=HERE, **options):
    common = {"heads_q": 64, "heads_kv": 8, "head_dim": 128, "device": H200, "direction": "backward"}
    return resolve_manifest(manifest, Problem(mask=mask, **{**common, **options}))


@pytest.mark.parametrize(
    ("pattern", "form"),
    [
        ("full", Form.FULL),
        ("causal", Form.CAUSAL),
        ("full_sliding_window", Form.WINDOW),
        ("causal_sliding_window", Form.WINDOW),
        ("full_document", Form.VARLEN),
        ("causal_document", Form.VARLEN),
    ],
)
def test_forms_of_patterns(pattern, form):
    mask = masks.sample(pattern, 8192, seed=0)
    for found in (resolve(mask), resolve(masks.PATTERNS[pattern]), resolve(mask, direction="forward")):
        assert found.offer is not None
        assert found.offer.form is form


@pytest.mark.parametrize(
    "pattern", ["prefix_lm_causal", "shared_question", "global_sliding_window", "uniform_block_sparse"]
)
def test_patterns_of_other_forms_are_refused(pattern):
    assert [reason.code for reason in resolve(masks.PATTERNS[pattern]).reasons] == ["form"]


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"head_dim": 256}, []),
        ({"head_dim": 264}, ["head_dim"]),
        ({"head_dim": 100}, ["head_dim"]),
        ({"head_dim": 192, "device": Device("cuda", (10, 0)), "allow_unverified": True}, ["head_dim"]),
        ({"device": Device("cuda", (8, 0))}, ["unverified"]),
        ({"device": Device("cuda", (8, 0)), "allow_unverified": True}, []),
        ({"device": Device("cuda", (7, 5))}, ["device"]),
        ({"device": Device("cpu")}, ["device"]),
        ({"dtype": "float32"}, ["dtype"]),
        ({"deterministic": True}, []),
    ],
)
def test_limits(options, codes):
    assert [reason.code for reason in resolve(masks.build("causal", 4096), **options).reasons] == codes


def test_documents_take_hopper_or_blackwell_and_are_never_deterministic():
    mask = masks.build("causal_document", 4096, documents=[1000, 3096])
    assert resolve(mask)
    assert resolve(mask, device=Device("cuda", (10, 0)), allow_unverified=True)
    for device in (Device("cuda", (8, 0)), Device("cuda", (12, 0))):
        assert [reason.code for reason in resolve(mask, device=device).reasons] == ["device"]
    assert "deterministic" in [reason.code for reason in resolve(mask, deterministic=True).reasons]


def test_equal_bits_are_for_short_sequences():
    found = resolve(masks.build("causal", 8192), deterministic=True)
    assert found.offer is not None
    assert found.offer.deterministic
    assert not resolve(masks.build("causal", 16384), deterministic=True)


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_one_document_that_takes_a_ragged_graph_needs_a_ragged_backward(capability):
    window = masks.build("full_sliding_window", 203, seqlen_k=77, window=40)
    refused = [window, masks.build("full", 1)]
    taken = [
        masks.build("causal", 203, seqlen_k=77),
        masks.build("full_sliding_window", 77, seqlen_k=203, window=40),
        masks.SliceMask([], 5, 0),
        masks.PATTERNS["causal"],
    ]
    here, elsewhere = Device("cuda", capability), Device("cuda", (9, 0))
    for mask in refused:
        problem = Problem(mask=mask, heads_q=4, device=here, direction="backward")
        verdict = supports_mask("cudnn", problem)
        assert [reason.code for reason in verdict.reasons] == ["lengths"]
        assert supports_mask("cudnn", replace(problem, direction="forward")) is None
        assert supports_mask("cudnn", replace(problem, device=elsewhere)) is None
    for mask in taken:
        assert supports_mask("cudnn", Problem(mask=mask, heads_q=4, device=here, direction="backward")) is None


def test_a_missing_frontend_is_a_reason_with_its_install_line():
    manifest = CUDNN.model_copy(update={"requires": ("nvidia-cudnn-frontend>=999",)})
    (reason,) = resolve(masks.build("causal", 4096), manifest).reasons
    assert reason.code == "package"
    assert "pip install 'longca-cudnn[cudnn]'" in reason.advice


@pytest.mark.parametrize(("extra", "manifest"), [("cudnn", CUDNN), ("open", CUDNN_FLEX), ("open", CUDNN_BSA)])
def test_the_extra_is_what_the_manifest_requires(extra, manifest):
    assert tuple(PYPROJECT["project"]["optional-dependencies"][extra]) == manifest.requires
    assert manifest.install == f"pip install 'longca-cudnn[{extra}]'"


def test_the_entry_point_is_the_package():
    assert PYPROJECT["project"]["entry-points"]["longca"] == {"cudnn": longca_cudnn.__name__}
