"""The kernel of dk and dv for Hopper, on a GPU. `test_gluon.py` compiles it without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca import Problem
from longca.manifests.devices import current_device
from longca.manifests.packages import missing
from longca.masks import BlockSparseMask
from longca.testing import verify
from longca_triton.checking import both_ways, draw_tensors
from longca_triton.config import Config, Configs
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.kernel import BlockSparseAttention
from longca_vsa.bsa_gluon import BSA_GLUON

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU here"
    ),
    pytest.mark.skipif(missing(*BSA_GLUON.requires) is not None, reason=f"{missing(*BSA_GLUON.requires)}"),
]


def kernel(hopper=True, **sizes):
    """bsa with stored gradients of scores."""
    dq = FromScores(128, 64, 8, 3, True, hopper=hopper, **sizes)
    return BlockSparseAttention(Configs(Config(64, 64, 4, 2, True), Config(64, 64, 4, 2, True), dq))


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """The launches made for Hopper."""
    from longca_vsa.bsa.hopper import launch

    made, real = [], launch.dkdv_launch
    monkeypatch.setattr(launch, "dkdv_launch", lambda *arguments: (made.append(1), real(*arguments))[1])
    return made


def mask_of(heads=2, block=64, seqlen=2048, keys=None, kept=0.4):
    """A mask whose first key block no query sees, and whose last one a single query block sees."""
    bounds_q, bounds_k = np.r_[0:seqlen:block, seqlen], np.r_[0 : keys or seqlen : block, keys or seqlen]
    bits = np.random.default_rng(0).random((heads, len(bounds_q) - 1, len(bounds_k) - 1)) < kept
    bits[..., 0], bits[..., -1] = False, False
    bits[:, 3, -1] = True
    bits[:, 5] = False
    return BlockSparseMask(bits, bounds_q, bounds_k)


def problem(mask, heads=(16, 2), dtype="bfloat16"):
    return Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=128,
        dtype=dtype,
        device=current_device(),
        direction="backward",
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [{}, {"streams": 2}, {"store": 2**21, "cache": 2**19}], ids=["one", "two", "ranges"])
@pytest.mark.parametrize(
    ("mask", "heads"),
    [
        (mask_of(), (16, 2)),
        (mask_of(1), (8, 1)),
        (mask_of(1), (3, 3)),
        (mask_of(block=128), (16, 2)),
        (mask_of(block=192, seqlen=1920), (12, 2)),
        (mask_of(seqlen=1000, keys=4096), (16, 2)),
        (mask_of(seqlen=4096, keys=512), (4, 2)),
    ],
)
def test_masks(mask, heads, sizes, dtype, launches):
    verify(kernel(**sizes), mask, dtype=dtype, head_dim=128, heads=heads)
    assert launches


def test_tensors_that_no_descriptor_has(launches):
    asked = problem(mask_of())
    q, k, v, dout = draw_tensors(asked)
    odd = torch.empty(len(q), q.shape[1], 129, dtype=q.dtype, device=q.device)[..., :128].copy_(q)
    expected = both_ways(kernel(), asked, q, k, v, dout)
    before = len(launches)
    assert before > 0
    for result, value in zip(both_ways(kernel(), asked, odd, k, v, dout), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)
    assert len(launches) == before


@pytest.mark.parametrize("sizes", [{}, {"streams": 2}, {"store": 2**21, "cache": 2**19}], ids=["one", "two", "ranges"])
def test_a_cuda_graph(sizes, launches):
    asked, made = problem(mask_of()), kernel(**sizes)
    q, k, v, dout = draw_tensors(asked)
    plan = made.plan(asked)
    out, lse = made.forward(q, k, v, plan)
    made.backward(dout, q, k, v, out, lse, plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = made.backward(dout, q, k, v, out, lse, plan)
    assert launches
    dout.copy_(torch.randn_like(dout))
    graph.replay()
    for result, value in zip(captured, made.backward(dout, q, k, v, out, lse, plan), strict=True):
        assert torch.equal(result, value)
