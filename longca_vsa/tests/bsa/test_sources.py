"""Which tensors are handed to the kernels as descriptors, and which as pointers."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca_vsa.bsa.sources import describable, described, described_vectors, on_device_of, strides


def packed(tokens=10, heads=6, head_dim=64):
    return torch.zeros(tokens, heads, head_dim, dtype=torch.bfloat16)


def test_tokens_with_their_heads_side_by_side_are_described():
    x = packed()
    assert describable(x)
    found = described(x, 64)
    assert (found.shape, found.strides, found.block_shape) == ([10, 6 * 64], [6 * 64, 1], [64, 64])


def test_some_heads_of_a_fused_projection_are_described():
    x = packed()[:, 2:4]
    assert describable(x)
    found = described(x, 32)
    assert (found.shape, found.strides) == ([10, 2 * 64], [6 * 64, 1])
    assert describable(packed()[:, ::2])


@pytest.mark.parametrize(
    "x",
    [
        packed().transpose(0, 1).contiguous().transpose(0, 1),  # a head's tokens lie side by side
        packed(head_dim=65)[..., 1:],  # not aligned
        packed(heads=1, head_dim=68)[..., :64],  # rows that are not
        packed().new_zeros(1, 1, 1).expand(10, 6, 64),
        packed(tokens=0),
        torch.empty_strided((4, 2, 64), (2**33, 2**32, 1), dtype=torch.bfloat16, device="meta"),
    ],
)
def test_other_tensors_are_not(x):
    assert not describable(x)
    assert not describable(packed(), x)


def test_vectors():
    prepared = torch.zeros(2, 4, 128)
    found = described_vectors(list(prepared), 64)
    assert [(x.shape, x.block_shape) for x in found] == [([4, 128], [1, 64])] * 2


def test_strides():
    assert list(strides(packed(), packed()[:, ::2])) == [384, 64, 384, 128]


def test_a_cpu_has_no_device_to_choose():
    with on_device_of(packed()):
        pass
