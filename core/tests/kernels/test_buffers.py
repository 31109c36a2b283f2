"""Which tensors the kernels read and write themselves, and which through a copy."""

from __future__ import annotations

import torch

from longca.kernels.base import fill, readable
from longca.kernels.buffers import on_device_of, writable

X = torch.zeros(10, 6, 64, dtype=torch.bfloat16)
SCATTERED = torch.zeros(10, 6, 128, dtype=torch.bfloat16)[..., ::2]


def test_a_contiguous_last_dimension_is_enough():
    for x in (X, X[:, 2:4], X.transpose(0, 1)):
        assert readable(x) is x
        assert writable(x, x) is x


def test_other_tensors_go_through_a_copy():
    assert readable(SCATTERED).is_contiguous()
    between = writable(SCATTERED, X)
    assert between.is_contiguous()
    assert between.dtype == X.dtype
    assert fill(SCATTERED, between.fill_(3.0)) is SCATTERED
    assert (SCATTERED == 3.0).all()


def test_what_was_written_at_once_is_not_copied():
    assert fill(X, X) is X
    result = writable(None, X)
    assert fill(None, result) is result


def test_a_cpu_has_no_device_to_choose():
    with on_device_of(X):
        pass
