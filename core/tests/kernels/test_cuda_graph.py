"""A whole layer in a CUDA graph, and calls that never wait for the device. The layer is that of the docs' example."""

import gc
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import longca
from longca import masks, plugins
from longca.manifests import Direction

from .cases import inputs, pattern_mask, problem

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "cuda_graph.py"
SEQLEN = 256
MASKS = {
    "causal": masks.build("causal", SEQLEN),
    "blocks of 64": masks.build("uniform_block_sparse", SEQLEN, block=64, kept=0.5, heads=2),
    "blocks of 128": masks.build("uniform_block_sparse", SEQLEN, block=128, kept=0.5, heads=2),
    "unequal blocks": masks.build("variable_block_sparse", SEQLEN, boundaries=[0, 64, 192, SEQLEN], kept=0.5, heads=2),
}
#: Warnings of PyTorch and of kernel libraries, which are about neither results nor waiting.
IGNORED = (
    "ignore:Attempting to run cuBLAS:UserWarning",  # the first product of the process is in the backward's thread
    "ignore:The CUDA Graph is empty:UserWarning",  # the compiler cuts its graph at attention
    "ignore:The AccumulateGrad node's stream does not match:UserWarning",  # a compiler keeps frames
    "ignore:Synchronization debug mode is a prototype:UserWarning",
    "ignore::DeprecationWarning",  # kernel libraries import each other's old names
)
pytestmark = [pytest.mark.filterwarnings(each) for each in IGNORED]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("cuda_graph_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def step(layer, x, dout):
    """out, and the gradients of x and of the parameters."""
    leaf = x.clone().requires_grad_()
    out = layer(leaf)
    return [out.detach(), *torch.autograd.grad(out, [leaf, *layer.parameters()], dout)]


def test_the_layer_is_the_same_with_every_kernel(example):
    mask = masks.build("causal_document", 70, documents=[30, 40])
    torch.manual_seed(0)
    layer = example.Layer(mask, "naive", (4, 2), 8).double()
    x, dout = torch.randn(2, 70, 32, dtype=torch.float64)
    expected = step(layer, x, dout)
    layer.kernel = "sdpa"
    assert max(map(example.distance, step(layer, x, dout), expected)) < 1e-12
    layer.mask = pattern_mask("causal", 70)
    assert example.distance(layer(x), expected[0]) > 1e-3, "the mask matters"


def replayed(example, kernel, mask):
    """The distances of a replay on new inputs from eager mode: of the output and of all gradients."""
    torch.manual_seed(0)
    layer = example.Layer(mask, kernel).to("cuda", torch.bfloat16)
    x, new_x, dout, new_dout = torch.randn(4, SEQLEN, 512, device="cuda", dtype=torch.bfloat16)
    captured = example.Captured(layer, x, dout)
    found = []
    for one, other in ((new_x, new_dout), (x, dout)):  # a replay leaves nothing for the next one
        out = captured.replay(one, other)
        got = [out, captured.x.grad, *(parameter.grad for parameter in layer.parameters())]
        found += map(example.distance, [tensor.clone() for tensor in got], step(layer, one, other))
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["sdpa", "auto"])
def test_a_replayed_layer_equals_an_eager_one(example, kernel):
    assert max(replayed(example, kernel, masks.build("causal", SEQLEN))) < 2e-2


@pytest.fixture
def registry(monkeypatch):
    """The plugins that are installed here."""
    registry = plugins.Registry()
    monkeypatch.setattr(plugins, "registry", lambda *about, **how: registry)
    return registry


def valid(registry, mask, direction):
    """The kernels that take a mask in one direction. The reference is not among them: it waits."""
    asked = problem(mask, inputs(mask, 8, 2, 64, torch.bfloat16, "cuda"), direction)
    return [name for name in registry.kernels if name != "naive" and registry.resolve(name, asked)]


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_installed_kernel_runs_in_a_graph(example, registry, mask):
    assert (names := valid(registry, mask, Direction.BACKWARD))
    assert {name: worst for name in names if (worst := max(replayed(example, name, mask))) >= 2e-2} == {}


@pytest.mark.gpu
def test_a_graph_outlives_the_cache_of_plans(plans):
    mask = masks.build("causal_document", SEQLEN, documents=[100, 156])  # sdpa's plan has a tensor
    q, k, v, _ = inputs(mask, 4, 2, 64, torch.bfloat16, "cuda")
    expected = longca.attention(q, k, v, mask, kernel="sdpa")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = longca.attention(q, k, v, mask, kernel="sdpa")
    del mask
    plans.clear()
    gc.collect()
    filled = [torch.full((1, SEQLEN, SEQLEN), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in range(64)]
    graph.replay()
    assert torch.equal(out, expected)
    assert len(filled) == 64


@pytest.mark.gpu
def test_masks_that_change_under_a_compiler_that_makes_graphs():
    used = [masks.build("causal_sliding_window", SEQLEN, window=window) for window in (3, 30, 200)]
    given = inputs(used[0], 4, 2, 64, torch.bfloat16, "cuda")[:3]
    compiled = torch.compile(lambda *x: longca.attention(*x, kernel="sdpa") * 2, mode="reduce-overhead", fullgraph=True)
    for mask in used * 3:
        assert torch.equal(compiled(*given, mask), longca.attention(*given, mask, kernel="sdpa") * 2)
    torch.compiler.reset()


def waits(mask, kernel, training):
    """Why a second call with a mask waits for the device, or an empty text."""
    given = inputs(mask, 8, 2, 64, torch.bfloat16, "cuda")

    def call():
        qkv = [x.detach().requires_grad_(training) for x in given[:3]]
        out = longca.attention(*qkv, mask, kernel=kernel)
        if training:
            torch.autograd.grad(out, qkv, given.dout)

    call()
    try:
        torch.cuda.set_sync_debug_mode("error")
        call()
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["sdpa", "auto"])
@pytest.mark.parametrize("training", [True, False])
def test_a_known_mask_does_not_wait_for_the_device(kernel, training):
    assert waits(pattern_mask("causal"), kernel, training) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_no_installed_kernel_waits_for_the_device(registry, mask, training):
    assert (names := valid(registry, mask, Direction.BACKWARD if training else Direction.FORWARD))
    assert {name: why for name in names if (why := waits(mask, name, training))} == {}
