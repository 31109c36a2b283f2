"""Launches that bind their arguments once: by fake kernels, and by what Triton itself would compile."""

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from longca_triton import launching
from longca_triton.launching import launch_kernel


class Kernel:
    """A kernel that notes what it is launched with. It compiles anew for each launch that binds."""

    arg_names = ("x", "n", "BLOCK", "LAST")

    def __init__(self):
        self.bound, self.direct = [], []

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.bound.append((grid, arguments, constants))
            return Compiled(self.direct)

        return run


class Compiled:
    def __init__(self, direct):
        self.direct = direct

    def __getitem__(self, grid):
        return lambda *arguments: self.direct.append((grid, arguments))


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launching, "JITFunction", Kernel)
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return Kernel()


def test_a_second_launch_of_the_same_kind_goes_to_the_compiled_kernel(kernel):
    x = torch.zeros(64)
    for grid, tensor, n in (((3,), x, 32), ((5, 2), x[16:], 48)):
        launch_kernel(kernel, grid, tensor, n, LAST=7, BLOCK=16, num_warps=4)
    assert [grid for grid, _, _ in kernel.bound] == [(3,)]
    ((grid, (tensor, *others)),) = kernel.direct
    assert (grid, others) == ((5, 2, 1), [48, 16, 7])
    assert tensor.data_ptr() == x[16:].data_ptr()


@pytest.mark.parametrize(
    ("n", "tensor", "constants"),
    [
        (33, lambda x: x, {}),
        (1, lambda x: x, {}),
        (2**31, lambda x: x, {}),
        (32.0, lambda x: x, {}),
        (None, lambda x: x, {}),
        (32, lambda x: x[1:], {}),
        (32, lambda x: x.half(), {}),
        (32, lambda x: x, {"BLOCK": 32}),
        (32, lambda x: x, {"num_warps": 8}),
    ],
)
def test_another_kind_binds(kernel, n, tensor, constants):
    x, given = torch.zeros(64), {"BLOCK": 16, "LAST": 7, "num_warps": 4}
    launch_kernel(kernel, (1,), x, 32, **given)
    launch_kernel(kernel, (1,), tensor(x), n, **{**given, **constants})
    assert len(kernel.bound) == 2
    assert not kernel.direct


def test_arguments_of_one_kind_are_one_to_triton():
    jit = pytest.importorskip("triton.runtime.jit")
    if not hasattr(jit, "native_specialize_impl"):
        pytest.skip("Triton before 3.6 has another function that classifies arguments")
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = torch.zeros(64, 64, dtype=torch.bfloat16)
    numbers = [0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**32 - 16, 2**32, 2**40, 2**63, -1, -16, -(2**31), -(2**31) - 16]
    tensors = [x, x[0, 1:], x[0, 8:], x.float(), x.long(), x.half()]
    blocks = [TensorDescriptor.from_tensor(x, block) for block in ([16, 16], [16, 32], [32, 16])]
    found = {}
    for value in [*numbers, *tensors, *blocks, TensorDescriptor.from_tensor(x.half(), [16, 16]), True, None, 0.5, 3.0]:
        compiled_for = jit.native_specialize_impl(CUDABackend, value, False, True, True)
        found.setdefault(launching._kind(value), set()).add(str(compiled_for))
    assert [kind for kind, classes in found.items() if len(classes) > 1] == []
    assert len(found) > 15
    assert len(set(itertools.chain(*found.values()))) > 10
