"""Sinks: a logit for each query head that takes a share of the softmax. The truth is one more column of scores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import longca
from longca import masks, plugins
from longca.errors import RequestError, UnsupportedError
from longca.kernels.pair import Pair
from longca.kernels.sinks import add_sinks, sinks_gradient
from longca.manifests import Backward
from longca_builtin.naive import Naive

from .cases import gappy_mask, inputs, pattern_mask, per_head_mask, problem
from .reference import BOUNDS, visible_by_head, worst_row
from .toys import Toys, manifest


def truth(given, sinks, mask):
    """out, dq, dk, dv and dsinks in float64, by a softmax over the keys and the sink. Blind rows have out 0."""
    q, k, v, s = leaves = [x.detach().double().requires_grad_() for x in (*given[:3], sinks)]
    visible = visible_by_head(mask, q.shape[1]).to(q.device)
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = (torch.einsum("ihd,jhd->hij", q, k) * q.shape[2] ** -0.5).masked_fill(~visible, -torch.inf)
    column = s[:, None, None].expand(-1, q.shape[0], 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    out = torch.einsum("hij,jhd->ihd", weights, v)
    return out.detach(), *torch.autograd.grad(out, leaves, given.dout.double())


def check(mask, kernel, dtype=torch.float64, heads=(8, 2), attend=longca.attention, head_dim=16, device="cpu"):
    """Compares output and all four gradients with the truth."""
    given = inputs(mask, *heads, head_dim, dtype, device)
    sinks = torch.linspace(-2, 3, heads[0], dtype=torch.float64).to(device, dtype)
    leaves = [x.clone().requires_grad_() for x in (*given[:3], sinks)]
    out = attend(*leaves[:3], mask, kernel=kernel, sinks=leaves[3])
    results = out.detach(), *torch.autograd.grad(out, leaves, given.dout)
    for name, actual, expected in zip(
        ("out", "dq", "dk", "dv", "dsinks"), results, truth(given, sinks, mask), strict=True
    ):
        bound = BOUNDS[dtype].out if name == "out" else BOUNDS[dtype].grad
        if actual.ndim == 1:
            actual, expected = actual[:, None, None], expected[:, None, None]
        worst = worst_row(actual, expected)
        assert worst <= bound, f"{name}: the worst row is off by {worst:.2e}, more than {bound:.2e}"


MASKS = {name: pattern_mask(name) for name in masks.PATTERNS}
MASKS |= {"gappy": gappy_mask(), "per-kv-head": per_head_mask(2), "per-query-head": per_head_mask(8)}


@pytest.mark.parametrize("kernel", ["naive", "sdpa", "naive+sdpa"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_mask(mask, kernel):
    check(mask, kernel)


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_in_bfloat16(kernel):
    check(pattern_mask("causal_document"), kernel, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_head_dims_on_a_gpu(dtype, head_dim):
    for mask in (pattern_mask("causal_document"), gappy_mask()):
        check(mask, "naive", dtype, (12, 3), head_dim=head_dim, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["sdpa", "naive+sdpa"])
def test_kernels_on_a_gpu(kernel):
    for mask in (pattern_mask("causal_document"), gappy_mask()):
        check(mask, kernel, torch.bfloat16, head_dim=64, device="cuda")


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_the_fused_kernels_under_tritons_interpreter():
    """Triton decides at import whether it interprets, so these have a process of their own."""
    pytest.importorskip("triton")
    script = Path(__file__).parent / "interpreted" / "check_sinks.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class OwnSinks(Naive):
    """A kernel with sinks of its own, but for one mask. It counts its calls."""

    calls = 0

    def forward_with_sinks(self, q, k, v, sinks, plan):
        self.calls += 1
        given = self.forward(q, k, v, plan)
        return None if plan.problem.mask == gappy_mask() else add_sinks(*given, sinks)

    def backward_with_sinks(self, dout, q, k, v, out, lse, sinks, plan):
        self.calls += 10
        grads = self.backward(dout, q, k, v, out, lse, plan)
        return None if plan.problem.mask == gappy_mask() else (*grads, sinks_gradient(dout, out, lse, sinks))


@pytest.mark.parametrize(("halves", "calls"), [("own", 22), ("own+naive", 2), ("naive+own", 20)])
def test_a_kernel_may_have_sinks_of_its_own(halves, calls, monkeypatch):
    own = OwnSinks()
    pairs = {"own": own, "own+naive": Pair(own, Naive), "naive+own": Pair(Naive(), lambda: own)}
    toys = Toys(manifest("toy"), toy=pairs[halves])
    monkeypatch.setattr(plugins, "registry", lambda: toys)
    check(pattern_mask("causal"), "toy")
    check(gappy_mask(), "toy")
    assert own.calls == calls


def test_compiled():
    torch._dynamo.reset()
    check(pattern_mask("causal_document"), "sdpa", attend=torch.compile(longca.attention, backend="aot_eager"))


def test_a_row_that_sees_nothing_gives_the_sink_nothing():
    mask = gappy_mask()
    given = inputs(mask, 4, 2)
    blind = torch.from_numpy(~mask.dense().any(-1))
    sinks = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    out, lse = longca.attention(*given[:3], mask, kernel="naive", sinks=sinks, return_lse=True)
    assert blind.any()
    assert not out[blind].any()
    assert not lse[:, blind].any()  # the sink alone
    (dsinks,) = torch.autograd.grad(out[blind].sum(), sinks)
    assert not dsinks.any()


def test_a_sink_of_minus_infinity_is_none():
    mask = gappy_mask()
    given = inputs(mask, 4, 2)
    leaves = [x.requires_grad_() for x in (*given[:3], torch.full((4,), -torch.inf, dtype=torch.float64))]
    out, lse = longca.attention(*leaves[:3], mask, sinks=leaves[3], kernel="naive", return_lse=True)
    plain, plain_lse = longca.attention(*leaves[:3], mask, kernel="naive", return_lse=True)
    assert torch.equal(out, plain)
    assert torch.equal(lse, plain_lse)
    assert not torch.autograd.grad(out.sum(), leaves)[3].any()


def test_varlen_and_sdpa():
    mask = pattern_mask("causal_document")
    bounds = torch.tensor([0, 1, 34, 41, 70])
    check(mask, "naive", attend=lambda q, k, v, _, **more: longca.varlen(q, k, v, bounds, causal=True, **more))

    def by_heads(q, k, v, mask, **more):
        return longca.sdpa(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask, **more)[0].transpose(0, 1)

    check(mask, "naive", attend=by_heads)


def test_prefetch_finds_the_plan():
    mask = pattern_mask("causal")
    longca.prefetch(mask, heads=(8, 2), head_dim=16, dtype=torch.float64, device="cpu", sinks=True).wait()
    check(mask, "auto")


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        ([0.0] * 4, "sinks is a list; give a tensor"),
        (torch.zeros(2), r"sinks has the shape \[2\]; give one number for each query head: \[4\]"),
        (torch.zeros(4, dtype=torch.int64), "sinks are torch.int64; give a floating-point type"),
        (torch.zeros(4, device="meta"), "sinks are on meta and q on cpu"),
        (torch.tensor([0, torch.nan, 0, torch.inf]), r"sinks of heads \[1, 3\] are NaN or \+∞"),
    ],
    ids=["list", "length", "dtype", "device", "nan"],
)
def test_sinks_that_do_not_fit_are_refused(sinks, words):
    mask = pattern_mask("causal")
    with pytest.raises(RequestError, match=words):
        longca.attention(*inputs(mask, 4, 2)[:3], mask, kernel="naive", sinks=sinks)


def test_masks_of_each_head_in_a_tensor_are_refused():
    q, visible = torch.randn(1, 4, 8, 16), torch.ones(1, 4, 8, 8, dtype=torch.bool)
    with pytest.raises(RequestError, match="attn_mask differs by head"):
        longca.sdpa(q, q, q, visible, sinks=torch.zeros(4))


def test_what_asks_about_sinks_takes_no_tensor():
    mask, sinks = pattern_mask("causal"), torch.zeros(4)
    with pytest.raises(RequestError, match="sinks is a Tensor; give True"):
        problem(mask, inputs(mask, 4, 2), sinks=sinks)
    with pytest.raises(RequestError, match=r"sinks is .*; give True or False"):
        longca.prefetch(mask, heads=(4, 2), device="cpu", sinks=sinks)


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        ({"backward": Backward.OWN}, "backward takes only its own forward's lse"),
        ({"rough_lse": True}, "too rough"),
        ({"optional_lse": True}, "may give no log-sum-exp"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_offer_that_does_not_compose_is_refused(offer, words):
    mask = pattern_mask("causal")
    asked = problem(mask, inputs(mask, 4, 2), sinks=True)
    verdict = longca.manifests.resolve_manifest(manifest("toy", **offer), asked)
    (reason,) = verdict.reasons
    assert reason.code == "sinks"
    with pytest.raises(UnsupportedError, match=f"{words}.*; sinks were asked"):
        verdict.check()
