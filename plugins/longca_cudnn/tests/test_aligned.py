"""Tensors that cuDNN's open kernels take in place, and copies of the others."""

from __future__ import annotations

import pytest
import torch

from longca_cudnn.aligned import aligned, is_aligned, result_for


def tensor(heads=3, dim=24, tokens=5):
    return torch.randn(tokens, heads, dim).bfloat16()


@pytest.mark.parametrize(
    ("view", "fits"),
    [
        (lambda x: x, True),
        (lambda x: x[1:, 1:2], True),
        (lambda x: x[..., :8], True),
        (lambda x: x[..., 8:16], True),
        (lambda x: x[..., 4:12], False),  # 8 bytes past a multiple of 16
        (lambda x: x[..., ::2], False),
        (lambda x: x.mT, False),
        (lambda x: x[:, :1].expand(-1, 3, -1), False),
        (lambda x: x[:1].expand(5, -1, -1), False),
        (lambda x: x.flatten(1)[:, :68].unflatten(1, (2, 34)), False),  # rows of 68 bytes
    ],
)
def test_views(view, fits):
    x = view(tensor())
    assert is_aligned(x) == fits
    found = aligned(x)
    assert (found is x) == fits
    assert torch.equal(found, x)
    assert is_aligned(found) or x.shape[-1] % 8
    assert (result_for(x, x) is x) == fits
    assert result_for(None, x).shape == x.shape
