"""The Triton kernels of `longca.parallel.merge` on CPU tensors; run under TRITON_INTERPRET=1."""

import torch

from longca.parallel.merge import merge
from longca.parallel.merge_triton import add_into_on_cuda, merge_into_on_cuda


def check_merge(count, head_dim, into):
    random = torch.Generator().manual_seed(count)
    outs = [torch.randn(37, 3, head_dim, generator=random) for _ in range(count)]
    lses = [torch.randn(3, 37, generator=random) * 5 for _ in range(count)]
    lses[0][1, 5:9] = -torch.inf  # nothing seen in one part
    for lse in lses:
        lse[2, 30:] = -torch.inf  # nor in any
    parts = list(zip(outs, lses, strict=True))
    expected = parts[0]
    for part in parts[1:]:
        expected = merge(expected, part)
    buffers = parts[into] if into is not None else (torch.full_like(outs[0], torch.nan), torch.empty_like(lses[0]))
    merge_into_on_cuda(parts, buffers)
    for actual, wanted in zip(buffers, expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


def check_add(count, into):
    random = torch.Generator().manual_seed(count)
    values = [torch.randn(5000, generator=random) for _ in range(count)]
    expected = torch.stack(values).sum(0)
    buffer = values[into] if into is not None else torch.full_like(values[0], torch.nan)
    add_into_on_cuda(values, buffer)
    torch.testing.assert_close(buffer, expected)


for count in (2, 3):
    for into in (None, *range(count)):
        check_add(count, into)
        check_merge(count, 8 * count, into)
