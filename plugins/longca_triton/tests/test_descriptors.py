"""Which tensors are handed to the kernels as descriptors, and which as pointers."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca_triton.descriptors import sources


def is_describable(x):
    return sources((x,), (64,), True)[1]


def packed(tokens=10, heads=6, head_dim=64):
    return torch.zeros(tokens, heads, head_dim, dtype=torch.bfloat16)


def test_tokens_with_their_heads_side_by_side_are_described():
    x = packed()
    (source,), tma = sources((x,), (64,), True)
    assert tma
    assert (source.shape, source.strides, source.block_shape) == ([10, 6 * 64], [6 * 64, 1], [64, 64])


def test_some_heads_of_a_fused_projection_are_described():
    x = packed()[:, 2:4]
    (source,), tma = sources((x,), (32,), True)
    assert tma
    assert (source.shape, source.strides) == ([10, 2 * 64], [6 * 64, 1])
    assert is_describable(packed()[:, ::2])


@pytest.mark.parametrize(
    "x",
    [
        packed().transpose(0, 1).contiguous().transpose(0, 1),  # a head's tokens lie side by side
        packed(head_dim=65)[..., 1:],  # not aligned
        packed(heads=1, head_dim=68)[..., :64],  # rows that are not
        packed(heads=8, head_dim=65)[..., :64],  # rows that are, with heads that are not
        packed().new_zeros(1, 1, 1).expand(10, 6, 64),
        packed(tokens=0),
        torch.empty_strided((4, 2, 64), (2**33, 2**32, 1), dtype=torch.bfloat16, device="meta"),  # a head too far off
    ],
)
def test_other_tensors_are_not(x):
    assert not is_describable(x)


def test_one_that_is_not_makes_all_pointers():
    x, y = packed(), packed(tokens=0)
    found, tma = sources((x, y), (64, 64), True)
    assert not tma
    assert found[0] is x
    assert sources((x,), (64,), False) == ([x], False)
