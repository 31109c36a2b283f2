"""The contract's helpers: plans, devices and buffers."""

from dataclasses import dataclass

import pytest
import torch

from longca import masks
from longca.errors import RequestError
from longca.kernels.base import (
    Plan,
    as_in_an_operator,
    device_of,
    fill,
    readable,
    writable,
)
from longca.manifests import Device, Problem
from longca.masks import Form


def test_a_plan_counts_the_bytes_of_its_tensors():
    @dataclass(eq=False)
    class Tabled(Plan):
        table: torch.Tensor | None = None
        other: torch.Tensor | None = None

    problem = Problem(mask=masks.build("full", 4), heads_q=1, device=Device("cpu"))
    plan = Tabled(problem, Form.FULL, "none", torch.zeros(3, dtype=torch.int32), torch.zeros(2, 2))
    assert plan.metadata_bytes == 12 + 16
    assert Plan(problem, Form.FULL, "none").metadata_bytes == 0


def test_the_device_of_a_tensor():
    assert device_of(torch.zeros(1)) == Device("cpu")
    with pytest.raises(RequestError, match="meta; LongCA runs on cpu and cuda"):
        device_of(torch.zeros(1, device="meta"))


@pytest.mark.gpu
def test_the_device_of_a_tensor_on_a_gpu():
    device = device_of(torch.zeros(1, device="cuda"))
    assert device.kind == "cuda"
    assert device.capability == torch.cuda.get_device_capability()
    assert device.name == torch.cuda.get_device_name()
    assert device.memory > 2**30


# Buffers

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


def test_a_kernel_runs_as_in_an_operator():
    leaf = X.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), as_in_an_operator(X):
        assert not torch.is_autocast_enabled("cpu")
        assert not (leaf * 2).requires_grad
        assert not leaf[0]._is_view()
    with as_in_an_operator(X):
        assert not (leaf * 2).requires_grad
    assert (leaf * 2).requires_grad


@pytest.mark.gpu
def test_a_kernel_runs_on_its_tensors_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    first, second = (torch.zeros(1, device=f"cuda:{index}") for index in (0, 1))
    with torch.cuda.device(0):
        for x, index in ((first, 0), (second, 1)):
            with as_in_an_operator(x):
                assert torch.cuda.current_device() == index
            assert torch.cuda.current_device() == 0
