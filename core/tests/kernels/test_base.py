"""The contract's helpers: plans, dtypes, devices, and the checks of inputs."""

from dataclasses import dataclass

import pytest
import torch

from longca import masks
from longca.errors import RequestError
from longca.kernels.base import (
    Plan,
    as_in_an_operator,
    check_inputs,
    device_of,
    fill,
    on_device_of,
    readable,
    torch_device,
    torch_dtype,
    writable,
)
from longca.manifests import Device, Problem
from longca.masks import Form


def tensors(q=(6, 4, 8), k=(5, 2, 8), v=(5, 2, 8), dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, v)]


def test_what_fits_passes():
    check_inputs(*tensors())
    check_inputs(*tensors(k=(5, 4, 8), v=(5, 4, 8)))
    check_inputs(*tensors(k=(5, 1, 8), v=(5, 1, 8)))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"q": (1, 6, 4, 8)}, r"q has shape \(1, 6, 4, 8\); tensors are packed"),
        ({"k": (5, 8)}, r"k has shape \(5, 8\)"),
        ({"v": (5,)}, r"v has shape \(5,\)"),
        ({"v": (4, 2, 8)}, "k and v must be of one shape"),
        ({"v": (5, 2, 4)}, "k and v must be of one shape"),
        ({"k": (5, 2, 4), "v": (5, 2, 4)}, "one head_dim"),
        ({"q": (6, 3, 8)}, "3 query heads do not divide among 2 KV heads"),
        ({"q": (6, 1, 8)}, "1 query heads do not divide among 2"),
        ({"k": (5, 0, 8), "v": (5, 0, 8)}, "among 0 KV heads"),
    ],
)
def test_shapes_that_do_not_fit(shapes, says):
    with pytest.raises(RequestError, match=says):
        check_inputs(*tensors(**shapes))


@pytest.mark.parametrize("odd", [1, 2])
def test_dtypes_and_devices_must_agree(odd):
    for change in (lambda x: x.double(), lambda x: x.to("meta")):
        given = tensors()
        given[odd] = change(given[odd])
        with pytest.raises(RequestError, match=f"but {'qkv'[odd]} is torch"):
            check_inputs(*given)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_arrays_are_no_tensors(odd):
    given = tensors()
    given[odd] = given[odd].numpy()
    with pytest.raises(RequestError, match=f"{'qkv'[odd]} is a ndarray; give torch tensors"):
        check_inputs(*given)


def test_a_plan_counts_the_bytes_of_its_tensors():
    @dataclass(eq=False)
    class Tabled(Plan):
        table: torch.Tensor | None = None
        other: torch.Tensor | None = None

    problem = Problem(mask=masks.build("full", 4), heads_q=1, device=Device("cpu"))
    plan = Tabled(problem, Form.FULL, "none", torch.zeros(3, dtype=torch.int32), torch.zeros(2, 2))
    assert plan.metadata_bytes == 12 + 16
    assert Plan(problem, Form.FULL, "none").metadata_bytes == 0


def test_fill_copies_into_a_buffer_or_passes_on():
    result = torch.arange(4.0)
    assert fill(None, result) is result
    buffer = torch.full((4,), torch.nan)
    assert fill(buffer, result) is buffer
    assert torch.equal(buffer, result)


def test_names_become_torchs_own():
    assert torch_dtype("bfloat16") is torch.bfloat16
    assert torch_dtype("float64") is torch.float64
    assert torch_device(Device("cpu")) == torch.device("cpu")
    assert torch_device(Device("cuda", (9, 0))).type == "cuda"


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


def test_what_was_written_at_once_is_not_copied():
    assert fill(X, X) is X
    result = writable(None, X)
    assert fill(None, result) is result


def test_a_cpu_has_no_device_to_choose():
    with on_device_of(X):
        pass


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
