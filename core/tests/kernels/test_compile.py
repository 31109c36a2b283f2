"""longca.attention under torch.compile, and PyTorch's own checks of its operators."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import longca
from longca import masks
from longca.kernels import operators

from .cases import gappy_mask, inputs, pattern_mask, per_head_mask, truth
from .reference import BOUNDS, Result, assert_close

GLOBAL = None

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor's CPU code needs g++")


@pytest.fixture(autouse=True)
def _compile_anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def layer(q, k, v, mask, kernel="auto"):
    """Attention with something to fuse on either side of it."""
    out, lse = longca.attention(q * 2, k + 1, v.sin(), mask, kernel=kernel, return_lse=True)
    return out.cos(), lse


def forward_and_gradients(function, mask, given, **more):
    qkv = [x.clone().requires_grad_() for x in given[:3]]
    out, lse = function(*qkv, mask, **more)
    return Result(out.detach(), lse, *torch.autograd.grad(out, qkv, given.dout))


def assert_same(compiled, eager, most=1e-12):
    for name, mine, theirs in zip(Result._fields, compiled, eager, strict=True):
        assert mine.dtype is theirs.dtype
        assert mine.stride() == theirs.stride()
        finite = theirs.isfinite()
        assert torch.equal(mine[~finite], theirs[~finite]), name
        assert (mine[finite] - theirs[finite]).abs().max() <= most, name


@pytest.mark.parametrize("kernel", ["naive", "auto"])
@pytest.mark.parametrize("name", ["causal", "shared_question", "gappy", "per-head", "wide values"])
def test_a_whole_graph_equals_eager(name, kernel):
    made = {"gappy": gappy_mask, "per-head": lambda: per_head_mask(8), "wide values": lambda: pattern_mask("causal")}
    mask = made.get(name, lambda: pattern_mask(name))()
    given = inputs(mask, 8, 2, head_dim_v=24 if name == "wide values" else None)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    result = forward_and_gradients(compiled, mask, given, kernel=kernel)
    assert_same(result, forward_and_gradients(layer, mask, given, kernel=kernel))


@pytest.mark.exhaustive
@needs_compiler
def test_inductor_equals_eager():
    mask = pattern_mask("shared_question")
    given = inputs(mask, 8, 2)
    compiled = torch.compile(layer, fullgraph=True)
    assert_same(forward_and_gradients(compiled, mask, given), forward_and_gradients(layer, mask, given), 1e-11)


def changing_masks():
    """20 masks that show different things, some alike in all but their factors and some in nothing but their size."""
    windows = [masks.build("causal_sliding_window", 70, window=w) for w in range(1, 12)]
    documents = [masks.build("causal_document", 70, documents=[n, 70 - n]) for n in range(1, 8)]
    return [*windows, *documents, pattern_mask("full"), pattern_mask("prefix_lm_causal")]


@pytest.mark.parametrize("training", [True, False])
def test_a_mask_that_changes_every_step_compiles_once(training):
    used = changing_masks()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for step, mask in enumerate(used):
        given = inputs(mask, 4, 2, seed=step)
        if training:
            assert_same(forward_and_gradients(compiled, mask, given), forward_and_gradients(layer, mask, given))
        else:
            assert torch.equal(compiled(*given[:3], mask)[0], layer(*given[:3], mask)[0])
    assert len(used) == 20
    assert counter.frame_count == 1


def attend_to_a_global(q, k, v):
    return longca.attention(q, k, v, GLOBAL)


def test_a_global_mask_compiles_once(monkeypatch):
    # Numbers reached through globals and modules are constants to the compiler: a mask's key must not be one.
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend_to_a_global, fullgraph=True, backend=counter)
    for mask in changing_masks():
        monkeypatch.setitem(globals(), "GLOBAL", mask)
        given = inputs(mask, 4, 2)
        assert torch.equal(compiled(*given[:3]), longca.attention(*given[:3], mask))
    assert counter.frame_count == 1


@pytest.mark.parametrize("training", [True, False])
def test_pytorchs_checks_of_the_forward(training):
    mask = pattern_mask("causal_document")
    qkv = [x.requires_grad_(training) for x in inputs(mask, 4, 2, head_dim=4)[:3]]
    arguments = (*qkv, torch.from_numpy(mask.key_array), "naive", 0.5, 2.0, False, False, training)
    torch.library.opcheck(operators.attention, arguments)


def test_pytorchs_checks_of_the_backward():
    mask = pattern_mask("causal_document")
    q, k, v, dout = inputs(mask, 4, 2, head_dim=4)
    out, lse = longca.attention(q, k, v, mask, kernel="naive", return_lse=True)
    key = torch.from_numpy(mask.key_array)
    torch.library.opcheck(
        operators.attention_backward, (dout, q, k, v, out, lse, key, "naive", None, None, False, False)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_on_a_gpu(backend):
    mask = pattern_mask("shared_question")
    given = inputs(mask, 8, 2, 64, torch.bfloat16, "cuda")
    compiled = torch.compile(longca.attention, fullgraph=True, backend=backend)

    def attend(q, k, v, mask):
        return compiled(q, k, v, mask, return_lse=True)

    assert_close(forward_and_gradients(attend, mask, given), truth(mask, given), BOUNDS[torch.bfloat16])
