"""Merging parts: the same as merging two and two, and gone through on the device as on the CPU."""

import pytest
import torch

from longca.parallel.merge import merge, merge_parts


def parts(count, dtype, device="cpu", head_dim=24):
    random = torch.Generator().manual_seed(count)
    outs = torch.randn(count, 37, 3, head_dim, generator=random).to(dtype).to(device)
    lses = torch.randn(count, 3, 37, generator=random).to(device) * 5
    lses[0, 1, 5:9] = -torch.inf  # nothing seen in one part
    lses[:, 2, 30:] = -torch.inf  # nor in any
    outs.masked_fill_((lses == -torch.inf).transpose(1, 2)[..., None], 0)
    return outs, lses


def pairwise(outs, lses):
    total = outs[0].double(), lses[0].double()
    for part in zip(outs[1:].double(), lses[1:].double(), strict=True):
        total = merge(total, part)
    return total


def check(outs, lses, tolerance):
    out, lse = merge_parts(outs, lses)
    expected_out, expected_lse = pairwise(outs, lses)
    assert out.dtype is outs.dtype
    torch.testing.assert_close(out.double(), expected_out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    assert not out.transpose(0, 1)[lse == -torch.inf].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_make_the_whole(count, dtype):
    check(*parts(count, dtype), tolerance=8e-3 if dtype is torch.bfloat16 else 1e-5)


def test_buffers_are_filled():
    outs, lses = parts(3, torch.float32)
    out, lse = torch.full((37, 3, 24), torch.nan), torch.full((3, 37), torch.nan)
    given = merge_parts(outs, lses, out=out, lse=lse)
    assert given[0] is out
    assert given[1] is lse
    assert not out.isnan().any()
    assert not lse.isnan().any()


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_one_pass_on_the_device(count, head_dim):
    check(*parts(count, torch.bfloat16, "cuda", head_dim), tolerance=8e-3)
    outs, lses = parts(count, torch.float16, "cuda", head_dim)
    wide = torch.full((37, 3, 2 * head_dim), torch.nan, dtype=torch.float16, device="cuda")
    out, _ = merge_parts(outs, lses, out=wide[..., :head_dim])
    assert not out.isnan().any()
    assert wide[..., head_dim:].isnan().all()
    apart, _ = merge_parts(outs, lses, out=wide[..., ::2])
    assert torch.equal(apart, merge_parts(outs, lses)[0])


@pytest.mark.gpu
def test_parts_of_more_than_2_31_elements():
    outs = torch.empty((3, 2**17, 64, 128), dtype=torch.bfloat16, device="cuda")
    lses = torch.zeros((3, 64, 2**17), device="cuda")
    for part in range(3):
        outs[part] = part
    out, lse = merge_parts(outs, lses)
    assert (out == 1).all()
    assert torch.allclose(lse, torch.full_like(lse, 3).log())
