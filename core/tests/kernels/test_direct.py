"""Calls without the dispatcher, the calls that still need it, and the agreement of both."""

import gc
import threading
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import longca
from longca import masks, plugins
from longca.errors import PluginError, UnsupportedError
from longca.kernels.operators import ATTENTION_OPERATORS

from .cases import inputs, pattern_mask, truth
from .reference import BOUNDS, Result, assert_close
from .toys import Counting, Toys, manifest

SAVING = partial(create_selective_checkpoint_contexts, ATTENTION_OPERATORS)


class Watching(TorchDispatchMode):
    """Notes the operators of LongCA that run, and how often."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "longca":
            self.seen.append(function._opname)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def counting(monkeypatch):
    """A kernel called `counting` that counts, alone in the registry."""
    kernel = Counting()
    toys = Toys(manifest("counting"), counting=kernel)
    monkeypatch.setattr(plugins, "registry", lambda: toys)
    return kernel


def leaves(mask, heads_q=4, heads_kv=2, seed=0):
    given = inputs(mask, heads_q, heads_kv, seed=seed)
    return [x.requires_grad_() for x in given[:3]], given


def both_ways(mask, seed=0):
    """Forward and backward."""
    qkv, given = leaves(mask, seed=seed)
    out, lse = longca.attention(*qkv, mask, kernel="naive", return_lse=True)
    return Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout))


# Which way a call takes


def test_a_mode_sees_the_operators_and_changes_nothing():
    mask = pattern_mask("shared_question")
    with Watching() as watching:
        seen = both_ways(mask)
    assert watching.seen == ["attention", "attention_backward"]
    for mine, theirs in zip(both_ways(mask), seen, strict=True):
        assert torch.equal(mine, theirs)


def test_tensors_without_memory_get_results_without_memory(counting):
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2)[:3]
    longca.attention(*given, mask, kernel="counting")
    with FakeTensorMode() as fake:
        faked = [fake.from_tensor(x).requires_grad_() for x in given]
        dq, *_ = torch.autograd.grad(longca.attention(*faked, mask, kernel="counting").sum(), faked)
    meta = longca.attention(*(x.to("meta") for x in given), mask, kernel="counting")
    assert dq.shape == meta.shape == given[0].shape
    assert meta.is_meta
    assert counting.forwards == 1


def test_a_kernel_is_given_no_negated_view(monkeypatch):
    class Reading(Counting):
        def forward(self, q, k, v, plan, **buffers):
            assert not q.is_neg(), "the memory of a negated view has other values"
            return super().forward(q, k, v, plan, **buffers)

    monkeypatch.setattr(plugins, "registry", lambda: Toys(manifest("reading"), reading=Reading()))
    mask = pattern_mask("causal")
    q, k, v, _ = inputs(mask, 4, 2)
    view = torch.complex(torch.zeros_like(q), q).conj().imag
    assert view.is_neg()
    found = longca.attention(view, k, v, mask, kernel="reading")
    assert torch.equal(found, longca.attention(-q, k, v, mask, kernel="reading"))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the fallback of vmap
def test_functional_gradients_are_those_of_dense_attention():
    mask = pattern_mask("causal")
    q, k, v, dout = inputs(mask, 4, 4)

    def by_book(q, k, v):
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5
        weights = scores.masked_fill(~torch.from_numpy(mask.dense()), -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def gradients(attend):
        def loss(*x):
            return (attend(*x) * dout).sum()

        one = torch.func.grad(loss, argnums=(0, 1, 2))
        return *one(q, k, v), *torch.func.vmap(one, (0, None, None))(torch.stack([q, dout]), k, v)

    found = gradients(lambda *x: longca.attention(*x, mask))
    torch.testing.assert_close(found, gradients(by_book))
    with pytest.raises(UnsupportedError, match="no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(lambda y: longca.attention(y, k, v, mask).sum())(x).sum())(q)


@pytest.mark.parametrize(
    "take", [lambda f, q, t: torch.func.jvp(f, (q,), (t,)), lambda f, q, _: torch.func.jacfwd(f)(q)]
)
def test_tangents_are_refused(take):
    mask = pattern_mask("causal")
    q, k, v, dout = inputs(mask, 4, 2)
    with pytest.raises(UnsupportedError, match="the tangent would be lost"):
        take(lambda x: longca.attention(x, k, v, mask).sum(), q, dout)


# Autograd


def test_a_gradient_of_a_gradient_is_refused():
    mask = pattern_mask("causal")
    qkv, _ = leaves(mask)
    (dq,) = torch.autograd.grad(longca.attention(*qkv, mask).sum(), qkv[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(dq.sum(), qkv[1])


@pytest.mark.parametrize("which", ["q", "out"])
def test_a_tensor_that_was_overwritten_is_noticed(which):
    (q, k, v), _ = leaves(mask := pattern_mask("causal"))
    q = q * 1
    out = longca.attention(q, k, v, mask)
    {"q": q, "out": out}[which].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Nothing(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return None


def test_no_gradient_from_above_is_a_gradient_of_zero():
    qkv, _ = leaves(mask := pattern_mask("causal"))
    grads = torch.autograd.grad(Nothing.apply(longca.attention(*qkv, mask)).sum(), qkv)
    assert not any(grad.any() for grad in grads)


def test_a_graph_keeps_its_plan(counting, plans):
    mask = pattern_mask("causal")
    qkv, given = leaves(mask)
    out = longca.attention(*qkv, mask, kernel="counting")
    plans.clear()
    torch.autograd.grad(out, qkv, given.dout)
    assert len(counting.planned) == 1


@pytest.mark.parametrize(
    ("forwards", "options"),
    [
        (2, {"use_reentrant": True}),
        (2, {"use_reentrant": False}),
        (1, {"use_reentrant": False, "context_fn": SAVING}),
    ],
    ids=["reentrant", "not reentrant", "selective"],
)
def test_a_checkpoint_computes_the_forward_again_unless_it_saves_attention(forwards, options, counting):
    mask = pattern_mask("causal_document")
    dense = torch.from_numpy(mask.dense())
    qkv, given = leaves(mask)

    def layer(q, k, v):
        out = longca.attention(q * 1, k * 1, v * 1, mask, kernel="counting")
        return out, longca.sdpa(*(x.transpose(0, 1)[None] * 1 for x in (q, k, v)), dense, kernel="counting")[0]

    out, same = checkpoint(layer, *qkv, **options)
    ((out + same.transpose(0, 1)) / 2).backward(given.dout)
    expected = truth(mask, given)
    for x, name in zip(qkv, ("dq", "dk", "dv"), strict=True):
        assert (x.grad - getattr(expected, name)).abs().max() < 1e-12
    assert (counting.forwards, counting.backwards) == (2 * forwards, 2)


@pytest.mark.parametrize("watched", [False, True], ids=["direct", "operator"])
@pytest.mark.parametrize("half", ["forward", "backward"])
def test_a_kernel_that_returns_its_inputs_is_refused(half, watched, counting, monkeypatch):
    mask = pattern_mask("causal")
    qkv, given = leaves(mask)
    if half == "forward":
        monkeypatch.setattr(counting, "forward", lambda q, k, v, plan: (q[:], q.new_empty(4, 70)))
    else:
        monkeypatch.setattr(counting, "backward", lambda dout, q, k, v, out, lse, plan: (q * 1, kv := k * 1, kv))

    said = pytest.raises(PluginError, match=r"Counting .* shares memory with an input or with another result")
    with Watching() if watched else nullcontext(), said:
        longca.attention(*qkv, mask, kernel="counting").backward(given.dout)


def test_inference_mode_leaves_a_plan_that_others_can_use(counting):
    mask = pattern_mask("causal")
    q, k, v, _ = inputs(mask, 4, 2)
    with torch.inference_mode():
        first = longca.attention(q, k, v, mask, kernel="counting")
    assert first.is_inference()
    (q, k, v), _ = leaves(mask)
    with torch.inference_mode(), torch.enable_grad(), pytest.raises(RuntimeError, match="Inference tensors cannot be"):
        longca.attention(q, k, v, mask, kernel="counting")
    longca.attention(q, k, v, mask, kernel="counting").sum().backward()
    with torch.no_grad():
        assert torch.equal(longca.attention(q, k, v, mask, kernel="counting"), first)
    assert [problem.direction for problem in counting.planned] == ["forward", "backward"]


# Memory and threads


@pytest.mark.parametrize("training", [True, False])
def test_no_tensor_outlives_its_graph(training, plans):
    mask = pattern_mask("causal")
    gc.collect()
    gc.disable()  # reference counts alone must do
    try:
        given = [x.clone().requires_grad_(training) for x in inputs(mask, 4, 2)[:3]]
        out, lse = longca.attention(*given, mask, return_lse=True)
        alive = [weakref.ref(x) for x in (*given, out, lse)]
        if training:
            out.sum().backward()
        del given, out, lse
        assert [x() for x in alive] == [None] * 5
        assert len(plans) == 1
    finally:
        gc.enable()


def test_a_mask_outlives_neither_its_plan_nor_its_graph(plans):
    mask = masks.build("causal", 5)
    qkv, _ = leaves(mask)
    out, alive = longca.attention(*qkv, mask), weakref.ref(mask)
    del mask
    plans.clear()
    gc.collect()
    assert alive() is not None, "the graph needs the plan, which holds the mask"
    del out
    gc.collect()
    assert alive() is None


def test_threads_that_call_at_the_same_time():
    used = [masks.build("causal_sliding_window", 70, window=w) for w in range(1, 5)]
    start, found, calls = threading.Barrier(8), {}, 6

    def work(number):
        start.wait()
        found[number] = [both_ways(used[(number + call) % 4], seed=number) for call in range(calls)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for number, results in found.items():
        for call, result in enumerate(results):
            mask = used[(number + call) % 4]
            assert_close(result, truth(mask, inputs(mask, 4, 2, seed=number)), BOUNDS[torch.float64])
