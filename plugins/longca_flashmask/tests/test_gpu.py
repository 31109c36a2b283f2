"""flashmask on a GPU: the compiled kernels, beyond the conformance suite."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca import Problem, masks
from longca.manifests.devices import current_device
from longca.masks import Slice, SliceMask
from longca.testing import verify
from longca_flashmask.flashmask import FlashMask, choose
from longca_triton.checking import both_ways, draw_tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LARGE = 48 * 2**30  # bytes that the largest test takes

COMB = SliceMask([Slice(200 * q, 200 * q + 90, 200 * k, 200 * k + 90) for k in range(8) for q in range(5)], 1000, 1600)


def by_pointers(head_dim):
    """The configurations in use, without descriptors."""
    return choose(head_dim, current_device().capability).by_pointers


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("mask", [COMB, masks.build("shared_question", seqlen=1000, documents=[300, 400, 300])])
def test_pointers_and_descriptors(mask, head_dim, dtype):
    verify(FlashMask(), mask, dtype=dtype, head_dim=head_dim)
    verify(FlashMask(by_pointers(head_dim)), mask, dtype=dtype, head_dim=head_dim)


def problem(mask, heads_q=4, heads_kv=2, head_dim=128):
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        device=current_device(),
        direction="backward",
    )


@pytest.mark.parametrize("use_pointers", [False, True], ids=["descriptors", "pointers"])
def test_offsets_past_32_bits(use_pointers):
    if torch.cuda.mem_get_info()[1] < LARGE:
        pytest.skip(f"needs a GPU of {LARGE / 2**30:.0f} GiB")
    document, documents = 1024, 260
    seqlen = document * documents
    assert seqlen * 64 * 128 > 2**31
    kernel = FlashMask(by_pointers(128) if use_pointers else None)
    asked = problem(masks.build("causal_document", seqlen=seqlen, documents=[document] * documents), 64, 8)
    alone = problem(masks.build("causal", seqlen=document), 64, 8)
    q, k, v, dout = draw_tensors(asked)
    out, lse, *grads = both_ways(kernel, asked, q, k, v, dout)
    last = slice(seqlen - document, seqlen)
    expected = both_ways(kernel, alone, *(x[last] for x in (q, k, v, dout)))
    for result, value in zip((out[last], lse[:, last], *(x[last] for x in grads)), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)
