"""Accumulating: any number of parts gives the result of one softmax, or of one sum."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longca.parallel.merge import Accumulator, Sum, merge

from .test_parts import parts

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3}


def fill_slots(total, results):
    for result in results:
        for buffer, value in zip(total.slot(), result, strict=True):
            buffer.copy_(value)
    return total.result()


def check_parts(count, dtype, device="cpu", head_dim=24):
    outs, lses = parts(count, dtype, device, head_dim)
    lses = lses.to(torch.promote_types(dtype, torch.float32))
    expected = outs[0].double(), lses[0].double()
    for part in zip(outs[1:].double(), lses[1:].double(), strict=True):
        expected = merge(expected, part)
    out, lse = fill_slots(Accumulator(outs[0]), zip(outs, lses, strict=True))
    assert out.dtype is dtype
    assert lse.dtype is lses.dtype
    torch.testing.assert_close(out.double(), expected[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(lse.double(), expected[1], atol=1e-5, rtol=1e-5)
    assert not out.transpose(0, 1)[lse == -torch.inf].any()


def check_sum(count, dtype, device="cpu"):
    random = torch.Generator().manual_seed(count)
    values = torch.randn(count, 37, 3, 25, generator=random).to(dtype).to(device)
    total = Sum(values[0])
    for value in values:
        total.slot().copy_(value)
    result = total.result()
    assert result.dtype is dtype
    torch.testing.assert_close(result.double(), values.double().sum(0), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_any_number_of_parts(count, dtype):
    check_parts(count, dtype)
    check_sum(count, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_no_part_at_all(dtype):
    q = torch.randn(5, 2, 3).to(dtype)
    out, lse = Accumulator(q).result()
    assert out.dtype is dtype
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((2, 5), -torch.inf, dtype=lse.dtype))
    assert torch.equal(Sum(q).result(), torch.zeros_like(q))


def test_a_part_that_sees_nothing_may_hold_anything():
    q = torch.randn(4, 1, 3)
    seen = torch.randn(4, 1, 3), torch.zeros(1, 4)
    nothing = torch.full((4, 1, 3), 7.0), torch.full((1, 4), -torch.inf)
    out, lse = fill_slots(Accumulator(q), [nothing, seen, nothing])
    assert torch.equal(out, seen[0])
    assert torch.equal(lse, seen[1])


def test_bfloat16_is_summed_in_float32():
    # In bfloat16 256 + 1 is 256: only a total that is wider counts.
    total = Sum(torch.zeros(1, dtype=torch.bfloat16))
    for value in [256.0, *[1.0] * 32]:
        total.slot().fill_(value)
    assert total.result().item() == 288


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [1, 24, 64, 128])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_on_the_device(count, head_dim):
    for dtype in TOLERANCE:
        check_parts(count, dtype, "cuda", head_dim)
        check_sum(count, dtype, "cuda")


@pytest.mark.gpu
def test_parts_of_more_than_2_31_elements():
    q = torch.empty((2**18, 64, 129), dtype=torch.bfloat16, device="cuda")
    total, whole = Accumulator(q), Sum(q)
    for part in range(3):
        out, lse = total.slot()
        out.fill_(part)
        lse.zero_()
        whole.slot().fill_(part)
    assert (total.result()[0] == 1).all()
    assert (whole.result() == 3).all()


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_the_kernels_under_tritons_interpreter():
    """Triton decides at import whether it interprets, so these have a process of their own."""
    pytest.importorskip("triton")
    script = Path(__file__).parent / "interpreted" / "check_accumulate.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
