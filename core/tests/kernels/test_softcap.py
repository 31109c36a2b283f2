"""Soft caps: scaled scores s become c·tanh(s/c) before the mask, with any mask and kernel that has one."""

import pytest
import torch

import longca
from longca import masks
from longca.errors import RequestError, UnsupportedError

from .cases import gappy_mask, inputs, pattern_mask, per_head_mask, problem, run, run_in_parts
from .reference import BOUNDS, Result, assert_close, reference

#: It bends standard normal scores to 0.76 of themselves and less.
CAP = 1.0
MASKS = {name: pattern_mask(name) for name in masks.PATTERNS}
MASKS |= {"gappy": gappy_mask(), "per-kv-head": per_head_mask(2), "per-query-head": per_head_mask(8)}


def check(mask, attend=longca.attention, dtype=torch.float64, device="cpu", head_dim=16, **more):
    """Compares the results of a function in both directions with float64 attention by the book."""
    given = inputs(mask, 8, 2, head_dim, dtype, device)
    qkv = [x.clone().requires_grad_() for x in given[:3]]
    out, lse = attend(*qkv, mask, softcap=CAP, return_lse=True, **more)
    result = Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout))
    assert_close(result, reference(*given, mask, softcap=CAP), BOUNDS[dtype])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_mask(mask):
    check(mask, kernel="naive")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_lower_precision(dtype):
    check(pattern_mask("causal_document"), dtype=dtype)


@pytest.mark.gpu
def test_on_a_gpu():
    for mask in (pattern_mask("causal_document"), gappy_mask()):
        check(mask, dtype=torch.bfloat16, head_dim=64, device="cuda", kernel="naive")


@pytest.mark.parametrize("name", ["causal_document", "gappy"])
def test_in_parts_that_merge(name, core):
    mask = MASKS[name]
    given = inputs(mask, 8, 2)
    asked = {"softcap": CAP, "softmax_scale": 0.7}
    expected = reference(*given, mask, 0.7, CAP)
    assert_close(run(core.load("naive"), mask, given, **asked), expected, BOUNDS[torch.float64])
    assert_close(run_in_parts(core.load("naive"), mask, given, (13, 30), **asked), expected, BOUNDS[torch.float64])


def test_compiled():
    torch._dynamo.reset()
    check(pattern_mask("causal_document"), torch.compile(longca.attention, backend="aot_eager", fullgraph=True))


def test_under_a_transform():
    mask = pattern_mask("causal_document")
    given = inputs(mask, 8, 2)

    def loss(q, k, v):
        return (longca.attention(q, k, v, mask, kernel="naive", softcap=CAP) * given.dout).sum()

    found = torch.func.grad(loss, argnums=(0, 1, 2))(*given[:3])
    for mine, right in zip(found, reference(*given, mask, softcap=CAP)[2:], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)


def test_varlen_and_sdpa():
    mask = pattern_mask("causal_document")
    bounds = torch.tensor([0, 1, 34, 41, 70])
    check(mask, lambda q, k, v, _, **more: longca.varlen(q, k, v, bounds, causal=True, **more))

    def by_heads(q, k, v, mask, **more):
        out, lse = longca.sdpa(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask, **more)
        return out[0].transpose(0, 1), lse[0]

    check(mask, by_heads)
    given = inputs(mask, 8, 2)[:3]
    plain = longca.varlen(*given, bounds, causal=True, kernel="naive")
    assert torch.equal(longca.varlen(*given, bounds, causal=True, kernel="naive", softcap=0.0), plain)


def test_beside_sinks():
    mask, sinks = gappy_mask(), torch.linspace(-2, 3, 8, dtype=torch.float64)
    given = inputs(mask, 8, 2)
    out, lse = longca.attention(*given[:3], mask, softcap=CAP, sinks=sinks, return_lse=True)
    right = reference(*given, mask, softcap=CAP)
    whole = torch.logaddexp(right.lse, sinks[:, None])
    torch.testing.assert_close(lse, whole)
    torch.testing.assert_close(out, right.out * (right.lse - whole).exp().T[..., None])


def test_prefetch_finds_the_plan():
    mask = pattern_mask("causal")
    longca.prefetch(mask, heads=(8, 2), head_dim=16, dtype=torch.float64, device="cpu", softcap=CAP).wait()
    check(mask)


def test_calls_with_and_without_a_cap_have_plans_of_their_own():
    mask = pattern_mask("causal")
    given = inputs(mask, 8, 2)[:3]
    plain, capped, wider = (longca.attention(*given, mask, softcap=cap) for cap in (None, CAP, 1e9))
    assert (plain - capped).abs().max() > 0.01
    torch.testing.assert_close(plain, wider)


def test_a_kernel_without_a_cap_is_refused(core):
    mask = pattern_mask("causal")
    given = inputs(mask, 8, 2)
    with pytest.raises(UnsupportedError, match=r"sdpa has no soft cap on the scores.*naive"):
        longca.attention(*given[:3], mask, kernel="sdpa", softcap=CAP)
    for pair in ("naive+sdpa", "sdpa+naive"):
        (reason,) = core.resolve(pair, problem(mask, given, softcap=CAP)).reasons
        assert reason.code == "softcap"


@pytest.mark.parametrize("cap", [0, -1.0, float("nan"), float("inf"), "50", True, torch.tensor(2.0)], ids=repr)
def test_a_cap_that_is_no_number_above_0_is_refused(cap):
    mask = pattern_mask("causal")
    given = inputs(mask, 8, 2)
    words = "softcap is .*; give a number above 0, or None"
    with pytest.raises(RequestError, match=words):
        longca.attention(*given[:3], mask, softcap=cap)
    with pytest.raises(RequestError, match=words):
        longca.prefetch(mask, heads=(8, 2), device="cpu", softcap=cap)
    with pytest.raises(RequestError, match=words):
        problem(mask, given, softcap=cap)
