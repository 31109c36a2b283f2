"""The Triton kernels of `longca.kernels.sinks` on CPU tensors; run under TRITON_INTERPRET=1."""

import itertools

import torch

from longca.kernels.sinks import add_sinks, sinks_gradient
from longca.kernels.sinks_triton import add_sinks_on_cuda, sinks_gradient_on_cuda

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def check(dtype, head_dim, heads, tokens=37):
    random = torch.Generator().manual_seed(head_dim)
    out, dout = (torch.randn(tokens, heads, head_dim, generator=random).to(dtype) for _ in range(2))
    lse = torch.randn(heads, tokens, generator=random) * 3
    lse[:, 5:9] = -torch.inf  # these see nothing
    out[5:9] = 0
    sinks = (torch.randn(heads, generator=random) * 3).to(dtype)
    sinks[-1] = -torch.inf
    wanted = add_sinks(out.double(), lse.double(), sinks)
    found = add_sinks_on_cuda(out.clone(), lse, sinks)
    for actual, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    gradient = sinks_gradient_on_cuda(dout, *found, sinks)
    expected = sinks_gradient(dout.double(), *(x.double() for x in found), sinks.double())
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


SHAPES = [(64, 12), (80, 3), (96, 5), (128, 8), (192, 2), (256, 3)]
for dtype, (head_dim, heads) in itertools.product(TOLERANCE, SHAPES):
    check(dtype, head_dim, heads)
check(torch.bfloat16, 64, 2, tokens=0)
