"""longca.attention: any kernel as a differentiable function."""

import gc
import logging
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import pad

import longca
from longca import masks, plugins
from longca.errors import MaskError, RequestError, UnsupportedError
from longca.manifests import Backward
from longca.masks import Form

from .cases import gappy_mask, inputs, pattern_mask, per_head_mask, problem, truth
from .reference import BOUNDS, Result, assert_close
from .toys import Counting, Toys, manifest, measured

KERNELS = ("naive", "sdpa")


def leaves(mask, heads_q=4, heads_kv=2, **more):
    """Inputs that require gradients, and dout."""
    given = inputs(mask, heads_q, heads_kv, **more)
    return [x.requires_grad_() for x in given[:3]], given


def attend(mask, kernel, dtype=torch.float64, heads_q=8, heads_kv=2, **more):
    """The result of attention and autograd, and the inputs."""
    qkv, given = leaves(mask, heads_q, heads_kv, dtype=dtype)
    out, lse = longca.attention(*qkv, mask, kernel=kernel, return_lse=True, **more)
    return Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout)), given


@pytest.fixture
def counting(monkeypatch):
    """A kernel called `counting` that counts, alone in the registry."""
    kernel = Counting()
    toys = Toys(manifest("counting"), counting=kernel)
    monkeypatch.setattr(plugins, "registry", lambda: toys)
    return kernel


# What it computes


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pattern", masks.PATTERNS)
def test_every_pattern(pattern, kernel, dtype):
    mask = pattern_mask(pattern)
    result, given = attend(mask, kernel, dtype)
    assert_close(result, truth(mask, given), BOUNDS[dtype])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "mask", [gappy_mask(), per_head_mask(2), per_head_mask(8), pattern_mask("causal", 23)], ids=str
)
def test_masks_of_no_pattern_and_of_unequal_lengths(mask, kernel):
    result, given = attend(mask, kernel)
    assert_close(result, truth(mask, given), BOUNDS[torch.float64])


@pytest.mark.parametrize("dims", [(24, 16), (8, 40)], ids=str)
@pytest.mark.parametrize("mask", [gappy_mask(), per_head_mask(2), pattern_mask("shared_question")], ids=str)
def test_values_of_another_width(mask, dims):
    qkv, given = leaves(mask, 8, 2, head_dim=dims[0], head_dim_v=dims[1])
    out, lse = longca.attention(*qkv, mask, return_lse=True)
    result = Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout))
    assert_close(result, truth(mask, given), BOUNDS[torch.float64])


@pytest.mark.parametrize(
    ("dims", "offer", "nearest"),
    [
        ((24, 16), {}, (24, 24)),
        ((24, 40), {"head_dims": (16, 64, (32, 40))}, (32, 40)),
        ((24, 40), {"max_head_dim": 32}, None),
    ],
)
def test_values_of_a_width_that_a_kernel_lacks_are_padded_as_its_refusal_says(monkeypatch, dims, offer, nearest):
    monkeypatch.setattr(plugins, "registry", lambda: Toys(manifest("toy", **offer), toy=Counting()))
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2, head_dim=dims[0], head_dim_v=dims[1])
    with pytest.raises(UnsupportedError, match=f"{dims[0]}:{dims[1]} was asked") as caught:
        longca.attention(*given[:3], mask, kernel="toy")
    if nearest is None:
        assert "pad" not in str(caught.value)
        return
    assert f"takes are {':'.join(map(str, dict.fromkeys(nearest)))}" in str(caught.value)
    padded = [pad(x, (0, width - x.shape[2])) for x, width in zip(given[:3], (nearest[0], *nearest), strict=True)]
    out = longca.attention(*padded, mask, kernel="toy", softmax_scale=dims[0] ** -0.5)
    assert (out[..., : dims[1]] - truth(mask, given).out).abs().max() < 1e-12


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pattern", ["full", "causal", "shared_question"])
def test_gradients_by_finite_differences(pattern, kernel):
    factors = {"documents": [4, 3, 2]} if pattern == "shared_question" else {}
    mask = masks.build(pattern, 9, **factors)
    qkv, _ = leaves(mask, 4, 2, head_dim=3)
    assert gradcheck(lambda *x: longca.attention(*x, mask, kernel=kernel, softmax_scale=0.7), qkv)


@pytest.mark.parametrize("kernel", KERNELS)
def test_autocast_changes_nothing(kernel):
    mask = pattern_mask("shared_question")
    plain, _ = attend(mask, kernel, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = attend(mask, kernel, torch.float32)
    for name in ("out", "lse", "dq", "dk", "dv"):
        assert torch.equal(getattr(plain, name), getattr(cast, name))


@pytest.mark.parametrize("scale", [0.0, float("nan")])
def test_a_scale_that_would_undo_the_mask_is_refused(scale):
    mask = pattern_mask("causal")
    with pytest.raises(RequestError, match=r"softmax_scale is .*; give a number above 0"):
        longca.attention(*inputs(mask, 4, 2)[:3], mask, softmax_scale=scale)


@pytest.mark.parametrize("kernel", KERNELS)
def test_strided_inputs_and_an_expanded_gradient(kernel):
    mask = pattern_mask("causal_document")
    given = inputs(mask, 4, 4)
    qkv = [x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in given[:3]]
    out = longca.attention(*qkv, mask, kernel=kernel)
    assert out.is_contiguous()
    grads = torch.autograd.grad(out.sum(), qkv)
    expected = truth(mask, given._replace(dout=torch.ones_like(given.q)))
    for grad, name in zip(grads, ("dq", "dk", "dv"), strict=True):
        assert (grad - getattr(expected, name)).abs().max() < 1e-12


@pytest.mark.parametrize("kernel", KERNELS)
def test_lse_is_returned_without_a_gradient(kernel):
    mask = gappy_mask()
    qkv, given = leaves(mask)
    out, lse = longca.attention(*qkv, mask, kernel=kernel, return_lse=True)
    assert out.requires_grad
    assert not lse.requires_grad
    assert lse.shape == (4, 40)
    assert torch.equal(lse == -torch.inf, truth(mask, given).lse == -torch.inf)
    # What is done with lse changes no gradient.
    loss = (out * given.dout).sum() + lse[lse > -torch.inf].sum()
    assert (torch.autograd.grad(loss, qkv)[0] - truth(mask, given).dq).abs().max() < 1e-12


# What is asked of a kernel, and how often


def test_a_plan_is_made_once(counting):
    mask = pattern_mask("causal")
    for _ in range(3):
        qkv, given = leaves(mask)
        longca.attention(*qkv, mask, kernel="counting").backward(given.dout)
    assert len(counting.planned) == 1
    assert (counting.forwards, counting.backwards) == (3, 3)
    assert counting.planned[0] == problem(mask, given, "backward")
    assert counting.planned[0].mask is mask


def test_a_kernel_is_given_a_contiguous_dout(counting):
    mask = pattern_mask("causal")
    qkv, _ = leaves(mask)
    longca.attention(*qkv, mask, kernel="counting").sum().backward()  # its gradient is one number, expanded
    assert counting.douts_were_contiguous == [True]


def test_without_gradients_only_a_forward_is_asked(counting):
    mask = pattern_mask("causal")
    qkv, _ = leaves(mask)
    with torch.no_grad():
        assert not longca.attention(*qkv, mask, kernel="counting").requires_grad
    longca.attention(*(x.detach() for x in qkv), mask, kernel="counting")
    assert [p.direction for p in counting.planned] == ["forward"]
    longca.attention(*qkv, mask, kernel="counting")
    assert [p.direction for p in counting.planned] == ["forward", "backward"]


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(mask=pattern_mask("full")),
        lambda a: a.update(softmax_scale=0.5),
        lambda a: a.update(deterministic=True),
        lambda a: a.update(tensors=inputs(a["mask"], 8, 2)[:3]),
        lambda a: a.update(tensors=inputs(a["mask"], 4, 4)[:3]),
        lambda a: a.update(tensors=inputs(a["mask"], 4, 2, head_dim=8)[:3]),
        lambda a: a.update(tensors=inputs(a["mask"], 4, 2, head_dim_v=8)[:3]),
        lambda a: a.update(tensors=inputs(a["mask"], 4, 2, dtype=torch.float32)[:3]),
    ],
    ids=["mask", "scale", "deterministic", "heads_q", "heads_kv", "head_dim", "head_dim_v", "dtype"],
)
def test_what_differs_is_planned_anew(change, monkeypatch):
    counting = Counting()
    toys = Toys(manifest("counting", deterministic=True, unequal_head_dims=True), counting=counting)
    monkeypatch.setattr(plugins, "registry", lambda: toys)
    mask = pattern_mask("causal")
    asked = {"mask": mask, "tensors": inputs(mask, 4, 2)[:3]}
    for _ in range(2):
        arguments = dict(asked)
        longca.attention(*arguments.pop("tensors"), arguments.pop("mask"), kernel="counting", **arguments)
        if len(counting.planned) == 1:
            change(asked)
    assert len(counting.planned) == 2


# kernel="auto"


def test_auto_says_once_what_it_chose(caplog):
    caplog.set_level(logging.INFO, "longca")
    for seed in range(3):
        mask = pattern_mask("causal")
        longca.attention(*inputs(mask, 4, 2, seed=seed)[:3], mask)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.getMessage().startswith("attention: sdpa for causal of 70 tokens: the first valid kernel. No measur")
    other = pattern_mask("full")
    longca.attention(*inputs(other, 4, 2)[:3], other)
    assert len(caplog.records) == 2


def test_auto_follows_the_history(caplog):
    caplog.set_level(logging.INFO, "longca")
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2)
    for kernel, form, seconds in (("naive", Form.ROW_INTERVALS, 1.0), ("sdpa", Form.CAUSAL, 2.0)):
        measured(kernel, seconds, problem(mask, given, "forward"), form)
    longca.attention(*given[:3], mask)
    assert "attention: naive for causal of 70 tokens: predicted to take 1 s" in caplog.text
    qkv, _ = leaves(mask)
    longca.attention(*qkv, mask)  # no backward was measured
    assert "attention: sdpa for causal of 70 tokens in training: the first valid kernel" in caplog.text


def test_auto_runs_a_pair_where_it_is_faster(caplog):
    caplog.set_level(logging.INFO, "longca")
    mask = pattern_mask("causal")
    _, given = leaves(mask, 8)
    forward, backward = (problem(mask, given, direction) for direction in ("forward", "backward"))
    for kernel, form, times in (("naive", Form.ROW_INTERVALS, (1.0, 9.0)), ("sdpa", Form.CAUSAL, (4.0, 2.0))):
        measured(kernel, times[0], forward, form)
        measured(kernel, times[1], backward, form)
    result, given = attend(mask, "auto")
    assert_close(result, truth(mask, given), BOUNDS[torch.float64])
    (record,) = caplog.records
    assert "naive+sdpa for causal of 70 tokens in training: predicted to take 3 s" in record.getMessage()


def test_what_is_wrong_with_the_history_is_said_once(history, caplog):
    history.parent.mkdir(parents=True)
    history.write_text('{"kernel": "naive"}\n')
    for pattern in ("causal", "full"):
        mask = pattern_mask(pattern)
        longca.attention(*inputs(mask, 4, 2)[:3], mask)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "left out of this machine's evidence" in record.getMessage()
    assert "line 1" in record.getMessage()


# What is refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, k, v: (q[:-1], k, v), "q has 69 tokens and k 70, but the mask is 70 × 70"),
        (lambda q, k, v: (q, k, v[1:]), "k and v must have as many tokens and heads"),
        (lambda q, k, v: (q[..., :-1], k, v), "one head_dim"),
        (lambda q, k, v: (q[:, :3], k, v), "3 query heads do not divide among 2 KV heads"),
        (lambda q, k, v: (q, k, v.float()), "but v is torch.float32"),
        (lambda q, k, v: (q, k, v.to("meta")), "but v is torch.float64 on meta"),
        (lambda q, k, v: (q[None], k[None], v[None]), r"q has shape \(1, 70, 4, 16\); tensors are packed"),
        (lambda q, k, v: (q.int(), k.int(), v.int()), "unknown dtype 'int32'"),
        (lambda q, k, v: (q, k.numpy(), v), "k is a ndarray; give torch tensors"),
    ],
)
def test_tensors_that_do_not_fit(change, says):
    mask = pattern_mask("causal")
    qkv = inputs(mask, 4, 2)[:3]
    longca.attention(*qkv, mask)  # a plan that exists is no excuse
    with pytest.raises(RequestError, match=says):
        longca.attention(*change(*qkv), mask)


def test_a_mask_whose_heads_do_not_fit():
    mask = pattern_mask("uniform_block_sparse", heads=4)
    with pytest.raises(RequestError, match="the mask has 4 heads, but q has 8 and k has 2"):
        longca.attention(*inputs(mask, 8, 2)[:3], mask)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mask": np.ones((70, 70))}, r"mask is a ndarray; build one with longca\.masks"),
        ({"kernel": None}, "kernel is None; give a kernel's name, or auto"),
        ({"softmax_scale": "a"}, "softmax_scale is 'a'; give a number above 0"),
        ({"deterministic": "no"}, "deterministic is 'no'; give True or False"),
        ({"allow_unverified": "yes"}, "allow_unverified is 'yes'; give True or False"),
        ({"placement": "zigzag"}, "a placement without a strategy; give strategy="),
        ({"transport": "copy_engine"}, "a transport without a strategy; give strategy="),
        ({"mesh": 2}, "a mesh without a strategy; give strategy="),
    ],
)
def test_settings_that_mean_nothing(settings, says):
    mask = pattern_mask("causal")
    with pytest.raises(RequestError, match=says):
        longca.attention(*inputs(mask, 4, 2)[:3], **{"mask": mask, **settings})


def test_what_is_unsupported_says_why_and_what_is_not(monkeypatch):
    refuses = manifest("refuses", cpu=False, verified_on=">=9.0")
    toys = Toys(refuses, manifest("takes"), manifest("takes_too"), takes=Counting())
    monkeypatch.setattr(plugins, "registry", lambda: toys)
    mask = pattern_mask("causal")
    with pytest.raises(UnsupportedError) as raised:
        longca.attention(*inputs(mask, 4, 2)[:3], mask, kernel="refuses")
    message = str(raised.value)
    assert "refuses runs on CUDA devices of compute capability >=9.0; " in message
    assert "this device is a CPU" in message
    assert message.endswith("Valid here: takes, takes_too.")


def test_a_kernel_without_a_backward_is_refused_for_training_alone(monkeypatch):
    toys = Toys(manifest("ahead", backward=Backward.NONE), ahead=Counting())
    monkeypatch.setattr(plugins, "registry", lambda: toys)
    mask = pattern_mask("causal")
    qkv, _ = leaves(mask)
    with torch.no_grad():
        longca.attention(*qkv, mask, kernel="ahead")
    with pytest.raises(UnsupportedError, match="ahead has a forward alone"):
        longca.attention(*qkv, mask, kernel="ahead")


def test_nothing_is_replaced_in_silence(core):
    mask = masks.build("causal_sliding_window", 2**17, window=1)
    given = [torch.zeros(1, 1, 1).expand(2**17, 1, 1)] * 3
    with pytest.raises(UnsupportedError, match=r"sdpa takes full, causal, dense.*Valid here: naive\."):
        longca.attention(*given, mask, kernel="sdpa")
    assert core.resolve("sdpa", problem(pattern_mask("full"), inputs(pattern_mask("full"), 4, 2))).valid


def test_the_key_of_a_mask_that_is_gone():
    mask = masks.build("causal", 5)
    key, given = torch.tensor(mask.key), inputs(mask, 1, 1, 2)[:3]
    del mask
    gc.collect()
    with pytest.raises(MaskError, match=f"key {key} no longer exists; keep a reference to it"):
        torch.ops.longca.attention(*given, key, "naive", None, None, False, False, False)


def test_a_mask_from_another_process_is_not_mistaken_for_one_of_here():
    # A data loader's worker counts its keys from the same number as others do.
    mask, other = pattern_mask("causal"), pattern_mask("full")
    given = inputs(mask, 4, 2)
    longca.attention(*given[:3], other)
    other.key, key = mask.key, other.key
    arrived = pickle.loads(pickle.dumps(other))
    other.key = key
    longca.attention(*given[:3], mask)
    assert torch.equal(longca.attention(*given[:3], arrived), longca.attention(*given[:3], other))
    assert masks.Mask.by_key(mask.key) is mask
    assert masks.Mask.by_key(arrived.key) is arrived


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["naive", "sdpa", "auto"])
@pytest.mark.parametrize("pattern", ["causal", "shared_question"])
def test_on_a_gpu(pattern, kernel):
    mask = pattern_mask(pattern)
    given = inputs(mask, 8, 2, 64, torch.bfloat16, "cuda")
    qkv = [x.clone().requires_grad_() for x in given[:3]]
    out, lse = longca.attention(*qkv, mask, kernel=kernel, return_lse=True)
    result = Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout))
    assert_close(result, truth(mask, given), BOUNDS[torch.bfloat16])
