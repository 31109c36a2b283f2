"""Transfers beside a kernel: chunks of whole groups, and none if NCCL would slow the kernel."""

import pytest

from longca import Device, Problem, masks
from longca_cp.overlap import chunk_count, is_beside


def problem_of(pattern):
    return Problem(mask=masks.build(pattern, seqlen=64), heads_q=8, heads_kv=4, device=Device("cpu"))


@pytest.mark.parametrize(("heads_kv", "most", "count"), [(4, 2, 2), (1, 2, 1), (6, 4, 3), (8, 4, 4), (5, 4, 1)])
@pytest.mark.parametrize("nccl", [False, True])
def test_as_many_as_divide_the_heads(heads_kv, most, count, nccl):
    assert chunk_count(problem_of("causal"), heads_kv, most, nccl) == count


def test_full_masks_go_whole_by_nccl():
    assert chunk_count(problem_of("full"), 4, 2, nccl=True) == 1
    assert chunk_count(problem_of("full"), 4, 2, nccl=False) == 2


def test_a_full_masks_forward_has_no_transfer_of_nccl_beside_it():
    assert [is_beside(problem_of(name), nccl) for name in ("full", "causal") for nccl in (True, False)] == [
        False, True, True, True,
    ]  # fmt: skip
