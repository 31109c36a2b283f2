"""bsa_gluon on a GPU, beyond the conformance suite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca import Problem, masks, registry
from longca.manifests.devices import current_device
from longca.masks import BlockSparseMask
from longca.testing import verify
from longca_vsa.bsa_gluon.kernel import BlockSparseGluon

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU here"
    ),
]


def problem(mask, heads, dtype="bfloat16"):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], head_dim=128, dtype=dtype, device=current_device())


def uniform(block, seqlen=4096, heads=1, kept=0.3):
    return masks.build("uniform_block_sparse", seqlen, block=block, kept=kept, heads=heads)


def some_see_nothing(heads):
    mask = uniform(64, heads=heads, kept=0.1)
    bits = mask.bits.copy()
    bits[:, 3:9], bits[-1] = 0, 0
    return BlockSparseMask.from_bits(bits, mask.q_bounds, mask.k_bounds)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("mask", "heads"),
    [
        (uniform(64, heads=2), (16, 2)),
        (uniform(64, 4136, heads=2), (16, 2)),
        (uniform(128, 4136, heads=2), (16, 2)),
        (uniform(256, 4168, heads=2), (16, 2)),
        (uniform(64), (4, 2)),
        (uniform(64, 104), (64, 1)),
        (uniform(128, heads=4), (4, 4)),
        (uniform(128, heads=8), (8, 2)),
        (some_see_nothing(2), (16, 2)),
        (uniform(64, 32768, heads=8, kept=0.05), (64, 8)),
        (BlockSparseMask(np.ones((1, 4, 1), bool), [0, 64, 128, 192, 256], [0, 40]), (8, 2)),
        (BlockSparseMask(np.zeros((1, 3, 3), bool), *[range(0, 193, 64)] * 2), (8, 2)),
    ],
)
def test_masks(mask, heads, dtype):
    verify(BlockSparseGluon(), mask, direction="forward", dtype=dtype, heads=heads, head_dim=128)


def test_a_cuda_graph():
    asked, kernel = problem(uniform(64, heads=2), (16, 2)), registry().load("bsa_gluon")
    q, k, v = (torch.randn(4096, heads, 128, dtype=torch.bfloat16, device="cuda") for heads in (16, 2, 2))
    plan = kernel.plan(asked)
    kernel.forward(q, k, v, plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = kernel.forward(q, k, v, plan)
    q.copy_(torch.randn_like(q))
    graph.replay()
    expected, sums = kernel.forward(q, k, v, plan)
    assert torch.equal(out, expected)
    assert torch.equal(lse, sums)
