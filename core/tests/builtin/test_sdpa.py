"""sdpa against a dense reference: on the CPU for everything a mask can be, on GPUs operator by operator."""

import pytest
import torch

from longca import masks
from longca.errors import UnsupportedError
from longca.manifests import Device, Problem
from longca.masks import Form
from longca_bench.conformance.oracle import verify
from longca_builtin.sdpa import SDPA

from ..kernels.cases import (
    RECTANGULAR,
    SEQLEN,
    gappy_mask,
    inputs,
    mask_cases,
    pattern_mask,
    per_head_mask,
    problem,
    run,
    run_in_parts,
    truth,
)
from ..kernels.reference import BOUNDS, assert_close

CASES = [pytest.param(*rest, id=name) for name, *rest in mask_cases()]
HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALF)


def backend_of(mask, given):
    return SDPA().plan(problem(mask, given)).backend


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("mask", "heads_q", "heads_kv"), CASES)
def test_agrees_with_the_reference(mask, heads_q, heads_kv, dtype):
    given = inputs(mask, heads_q, heads_kv, dtype=dtype)
    result = run(SDPA(), mask, given)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert [x.dtype for x in result] == [dtype, wide, dtype, dtype, dtype]
    assert_close(result, truth(mask, given), BOUNDS[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_a_large_group_are_not_added_up_in_half_precision(dtype):
    found = verify(SDPA(), masks.build("causal", 512), dtype=dtype, heads=(32, 1), head_dim=16, device=Device("cpu"))
    assert max(finding.closeness for finding in found.findings if finding.tensor in ("dk", "dv")) < 0.5


@pytest.mark.parametrize("cuts", [(31,), (12, 40), (12, 12)], ids=str)
@pytest.mark.parametrize("name", ["full", "causal", "full_sliding_window", "shared_question", "per-head", "gappy"])
def test_parts_of_the_keys_merge_to_the_whole(name, cuts):
    mask = {"per-head": lambda: per_head_mask(8), "gappy": gappy_mask}.get(name, lambda: pattern_mask(name))()
    given = inputs(mask, 8, 2)
    assert_close(run_in_parts(SDPA(), mask, given, cuts), truth(mask, given), BOUNDS[torch.float64])


@pytest.mark.parametrize("mask", [gappy_mask(), per_head_mask(2), pattern_mask("causal")], ids=str)
def test_poisoned_buffers_are_filled_and_returned(mask):
    given = inputs(mask, 4, 2, dtype=torch.bfloat16)
    q, k, v, dout = given
    plan = SDPA().plan(problem(mask, given))
    out, lse = torch.full_like(q, torch.nan), torch.full((4, len(q)), torch.nan)
    returned = SDPA().forward(q, k, v, plan, out=out, lse=lse)
    assert returned[0] is out
    assert returned[1] is lse
    buffers = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    grads = SDPA().backward(dout, q, k, v, out, lse, plan, dq=buffers[0], dk=buffers[1], dv=buffers[2])
    assert all(grad is buffer for grad, buffer in zip(grads, buffers, strict=True))
    for filled, fresh in zip((out, lse, *buffers), run(SDPA(), mask, given), strict=True):
        assert torch.equal(filled, fresh)
        assert not filled.isnan().any()


@pytest.mark.parametrize("pattern", ["full", "causal", "causal_blockwise"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_inputs_may_be_strided_and_are_left_alone(dtype, pattern):
    mask = pattern_mask(pattern)
    plain = inputs(mask, 4, 4, dtype=dtype)
    strided = plain._replace(
        q=plain.q.transpose(0, 1).contiguous().transpose(0, 1),
        k=torch.cat([plain.k, plain.k], 2)[..., :16],
        v=torch.stack([plain.v, plain.v], -1)[..., 0],
        dout=torch.stack([plain.dout, plain.dout], -1)[..., 0],
    )
    before = [x.clone() for x in strided]
    result = run(SDPA(), mask, strided)
    assert_close(result, truth(mask, plain), BOUNDS[dtype])
    assert all(torch.equal(x, y) for x, y in zip(strided, before, strict=True))


def test_the_forwards_lse_and_a_merged_one_are_left_alone():
    mask = gappy_mask()
    given = inputs(mask, 4, 2)
    plan = SDPA().plan(problem(mask, given))
    out, lse = SDPA().forward(given.q, given.k, given.v, plan)
    before = out.clone(), lse.clone()
    SDPA().backward(given.dout, given.q, given.k, given.v, out, lse, plan)
    assert torch.equal(out, before[0])
    assert torch.equal(lse, before[1])


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 5), (5, 0), (0, 0)])
def test_no_queries_or_no_keys(seqlen_q, seqlen_k):
    mask = masks.build("full", 8).cut([(0, seqlen_q)], [(0, seqlen_k)])
    given = inputs(mask, 4, 2, dtype=torch.bfloat16)
    out, lse, *grads = run(SDPA(), mask, given)
    assert out.shape == given.q.shape
    assert not out.any()
    assert torch.equal(lse, torch.full((4, seqlen_q), -torch.inf))
    assert [g.shape for g in grads] == [given.q.shape, given.k.shape, given.k.shape]
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (masks.build("full", 9), Form.FULL),
        (masks.build("full", 9, seqlen_k=4), Form.FULL),
        (masks.build("causal", 9), Form.CAUSAL),
        (masks.build("causal_document", 9, documents=[9]), Form.CAUSAL),
        (masks.build("causal", 9, seqlen_k=12), Form.DENSE),
        (masks.build("causal", 12, seqlen_k=9), Form.DENSE),
        (masks.build("causal_sliding_window", 9, window=3), Form.DENSE),
    ],
    ids=str,
)
def test_only_masks_that_need_one_get_a_bias(mask, form):
    plan = SDPA().plan(Problem(mask=mask, heads_q=2, dtype="float32", device=Device("cpu")))
    assert plan.form is form
    assert (plan.bias is not None) == (form is Form.DENSE)
    assert plan.is_causal == (form is Form.CAUSAL)
    assert plan.metadata_bytes == (0 if plan.bias is None else plan.bias.nbytes + (getattr(plan.empty, "nbytes", 0)))


@pytest.mark.parametrize(("heads", "expected"), [(1, 1), (2, 8), (8, 8)])
def test_a_bias_has_one_head_or_all(heads, expected):
    mask = per_head_mask(heads) if heads > 1 else pattern_mask("shared_question")
    plan = SDPA().plan(Problem(mask=mask, heads_q=8, heads_kv=2, dtype="bfloat16", device=Device("cpu")))
    assert plan.bias.shape == (1, expected, SEQLEN, SEQLEN)
    assert plan.bias.dtype is torch.bfloat16
    assert plan.bias.stride(2) % 16 == 0  # the memory-efficient kernel reads whole 16-element strides
    shown = plan.bias[0] == 0
    assert torch.equal(shown, ~plan.bias[0].isneginf())
    dense = torch.from_numpy(mask.dense()).reshape(-1, SEQLEN, SEQLEN)
    assert torch.equal(shown, dense.repeat_interleave(expected // len(dense), 0))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "pattern", "backend"),
    [
        ("bfloat16", 128, (9, 0), "causal", "flash"),
        ("float16", 256, (8, 0), "full", "flash"),
        ("float16", 264, (8, 0), "full", "efficient"),
        ("bfloat16", 128, (7, 5), "full", "efficient"),
        ("float32", 128, (9, 0), "causal", "efficient"),
        ("bfloat16", 128, (9, 0), "prefix_lm_causal", "efficient"),
    ],
)
def test_the_operator_follows_from_the_problem(dtype, head_dim, capability, pattern, backend, monkeypatch):
    monkeypatch.setattr("longca_builtin.sdpa.torch_device", lambda device: torch.device("cpu"))
    mask = pattern_mask(pattern)
    device = Device("cuda", capability)
    plan = SDPA().plan(Problem(mask=mask, heads_q=2, head_dim=head_dim, dtype=dtype, device=device))
    assert plan.backend == backend


def test_float64_on_a_gpu_is_refused():
    device = Device("cuda", (9, 0))
    with pytest.raises(UnsupportedError, match="no fused float64 kernel"):
        SDPA().plan(Problem(mask=pattern_mask("causal"), heads_q=2, dtype="float64", device=device))


# On GPUs: flash for full and causal masks in half precision, the memory-efficient kernel for the rest.

GPU_LENGTHS = [(1, 1), (31, 31), (64, 64), (100, 100), (257, 257), (1000, 1000)]
GPU_RECTANGLES = [(7, 300), (300, 7), (1, 129), (129, 1), (64, 48), (96, 40), (96, 41), (257, 100), (100, 257)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("heads_q", "heads_kv"), [(8, 1), (8, 2), (4, 4)])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), GPU_LENGTHS)
@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_flash(pattern, seqlen_q, seqlen_k, heads_q, heads_kv, dtype):
    mask = masks.build(pattern, seqlen_q, seqlen_k=seqlen_k)
    given = inputs(mask, heads_q, heads_kv, 64, dtype, "cuda")
    assert backend_of(mask, given) == "flash"
    assert_close(run(SDPA(), mask, given), truth(mask, given), BOUNDS[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), GPU_RECTANGLES)
def test_flash_with_unequal_lengths(seqlen_q, seqlen_k, dtype):
    mask = masks.build("full", seqlen_q, seqlen_k=seqlen_k)
    given = inputs(mask, 8, 2, 64, dtype, "cuda")
    assert backend_of(mask, given) == "flash"
    assert_close(run(SDPA(), mask, given), truth(mask, given), BOUNDS[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize(("mask", "heads_q", "heads_kv"), CASES)
def test_every_mask_on_a_gpu(mask, heads_q, heads_kv, dtype):
    given = inputs(mask, heads_q, heads_kv, 32, dtype, "cuda")
    assert_close(run(SDPA(), mask, given), truth(mask, given), BOUNDS[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads_q", "heads_kv"), [(8, 1), (8, 2), (4, 4)])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), GPU_LENGTHS + GPU_RECTANGLES)
@pytest.mark.parametrize("pattern", RECTANGULAR)
def test_efficient(pattern, seqlen_q, seqlen_k, heads_q, heads_kv, dtype):
    window = {"window": 20} if "window" in pattern else {}
    mask = masks.build(pattern, seqlen_q, seqlen_k=seqlen_k, **window)
    given = inputs(mask, heads_q, heads_kv, 64, dtype, "cuda")
    assert_close(run(SDPA(), mask, given), truth(mask, given), BOUNDS[dtype])
