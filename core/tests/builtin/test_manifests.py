"""The core's own manifests: the kernels keep the offers."""

import itertools

import pytest

from longca import masks
from longca.manifests import Backward, Device, Problem, resolve_manifest
from longca.masks import Form
from longca_builtin import NAIVE, SDPA

from ..kernels.cases import RECTANGULAR, SEQLEN, gappy_mask, pattern_mask, per_head_mask

CPU = Device("cpu")
H200 = Device("cuda", (9, 0), 2**37, "NVIDIA H200")


def verdict(manifest, mask, device=CPU, dtype="float32", **more):
    more = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "direction": "backward", **more}
    return resolve_manifest(manifest, Problem(mask=mask, device=device, dtype=dtype, **more))


def every_mask():
    for name in masks.PATTERNS:
        yield name, pattern_mask(name)
    for name, keys in itertools.product(RECTANGULAR, (23, 101)):
        yield f"{name}-{keys}-keys", pattern_mask(name, keys)
    for heads in (2, 8):
        yield f"{heads}-heads", per_head_mask(heads)
        yield f"uniform-{heads}-heads", pattern_mask("uniform_block_sparse", heads=heads)
    full = masks.build("uniform_block_sparse", SEQLEN, block=16, kept=1.0)
    yield "all-blocks-kept", full
    yield "all-blocks-of-all-heads-kept", masks.build("uniform_block_sparse", SEQLEN, block=16, kept=1.0, heads=2)
    yield "blocks-that-are-causal", masks.BlockSparseMask([[1, 0], [1, 1]], [0, 1, 2], [0, 1, 2])
    yield "gappy", gappy_mask()
    yield "one-document", masks.build("causal_document", SEQLEN, documents=[SEQLEN])
    yield "cut", pattern_mask("causal").cut([(10, 20)], [(0, 20)])
    yield "empty", pattern_mask("causal").cut([(0, 20)], [(30, 60)])
    yield "no-keys", pattern_mask("causal").cut([(0, 20)], [])


MASKS = [pytest.param(mask, id=name) for name, mask in every_mask()]


@pytest.fixture(params=["naive", "sdpa"])
def kernel(request, core):
    return core.kernels[request.param], core.load(request.param)


@pytest.mark.parametrize("mask", MASKS)
def test_a_plans_form_is_that_of_the_offer(kernel, mask):
    manifest, implementation = kernel
    found = verdict(manifest, mask)
    assert found.valid
    problem = Problem(mask=mask, heads_q=8, heads_kv=2, head_dim=64, dtype="float32", device=CPU)
    assert implementation.plan(problem).form is found.offer.form


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 264])
@pytest.mark.parametrize("mask", MASKS)
def test_a_plans_form_and_operator_on_a_gpu_are_those_of_the_offer(kernel, mask, head_dim, dtype, monkeypatch):
    monkeypatch.setattr("longca_builtin.sdpa.torch_device", lambda device: "cpu")
    manifest, implementation = kernel
    offer = verdict(manifest, mask, H200, dtype, head_dim=head_dim, direction="forward").offer
    problem = Problem(mask=mask, heads_q=8, heads_kv=2, head_dim=head_dim, dtype=dtype, device=H200)
    plan = implementation.plan(problem)
    assert plan.form is offer.form
    if manifest is SDPA:
        assert plan.backend == ("flash" if offer.max_head_dim == 256 else "efficient")


def test_sdpa_has_no_gradients_in_float32_of_a_mask_as_a_tensor_on_a_gpu():
    mask = pattern_mask("shared_question")
    assert verdict(SDPA, mask, H200, "float32", direction="forward").offer.backward is Backward.NONE
    assert not verdict(SDPA, mask, H200, "float32")
    assert verdict(SDPA, mask, H200, "bfloat16")
    assert verdict(SDPA, pattern_mask("causal"), H200, "float32")


def test_sdpa_refuses_a_dense_matrix_that_is_too_large():
    found = verdict(SDPA, masks.build("causal_sliding_window", 128 * 1024, window=9))
    assert not found.valid
    assert verdict(SDPA, masks.build("causal", 128 * 1024)).offer.form is Form.CAUSAL
    assert verdict(NAIVE, masks.build("causal_sliding_window", 128 * 1024, window=9))
