"""The adapters on an emulated wrapper: the arguments that they pass to FlashInfer, and the results that they return."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask
from longca.testing import verify
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.naive import Naive
from longca_flashinfer import kernel as module
from longca_flashinfer.kernel import FlashInferFA2, FlashInferFA3

from .emulated import VariableBlockSparseAttentionWrapper, get_batch_prefill_module

VARIABLE = (0, 3, 64, 65, 130, 203)


def bitmap(rows, columns, heads=2):
    """Random blocks, with a row that keeps nothing and a row that keeps everything."""
    kept = np.random.default_rng(0).random((heads, rows, columns)) < 0.5
    kept[:, 0], kept[:, -1] = False, True
    return kept


MASKS = {
    "blocks of 64": BlockSparseMask(bitmap(4, 4), [0, 64, 128, 192, 203], [0, 64, 128, 192, 203]),
    "variable blocks": BlockSparseMask(bitmap(5, 5), VARIABLE, VARIABLE),
    "one mask for all heads": BlockSparseMask(bitmap(5, 5, 1), VARIABLE, VARIABLE),
    "fewer queries": BlockSparseMask(bitmap(2, 5), [0, 16, 77], VARIABLE),
    "more queries": BlockSparseMask(bitmap(5, 2), VARIABLE, [0, 16, 77]),
    "every row keeps something": masks.build("uniform_block_sparse", 203, block=16, kept=0.4, heads=2),
    "one token": BlockSparseMask(np.ones((2, 1, 1)), [0, 1], [0, 1]),
    "nothing": BlockSparseMask(np.zeros((2, 5, 5)), VARIABLE, VARIABLE),
}


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """Replaces FlashInfer's wrapper with an emulated one. Yields the list of wrappers that were made."""
    wrapper = VariableBlockSparseAttentionWrapper
    monkeypatch.setattr(wrapper, "made", [])
    monkeypatch.setattr(wrapper, "compiled", set())
    library = {
        "flashinfer": SimpleNamespace(VariableBlockSparseAttentionWrapper=wrapper, __version__="0.7.0"),
        "flashinfer.prefill": SimpleNamespace(get_batch_prefill_module=get_batch_prefill_module),
    }
    monkeypatch.setattr(module, "_library", library.__getitem__)
    monkeypatch.setattr(module, "_processors", lambda device: 132)
    monkeypatch.setattr(module, "available_bytes", lambda device: 2**40)
    return wrapper.made


def problem(mask, **options):
    common = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "dtype": "float64", "device": Device("cpu")}
    return Problem(mask=mask, **{**common, **options})


@pytest.mark.parametrize("heads", [(8, 2), (2, 2)])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("kernel", [FlashInferFA2, FlashInferFA3])
def test_every_mask_it_takes(kernel, mask, heads):
    verify(kernel(), mask, direction="forward", device=Device("cpu"), heads=heads, head_dim=64)


@pytest.mark.parametrize("kernel", [FlashInferFA2, FlashInferFA3])
def test_a_soft_cap(kernel):
    verify(kernel(), MASKS["variable blocks"], direction="forward", device=Device("cpu"), heads=(8, 2), softcap=1.0)


def test_strided_inputs_and_buffers():
    asked = problem(MASKS["variable blocks"])
    inputs = draw_inputs(asked, 0)
    packed = torch.cat([inputs.q, inputs.k, inputs.v], 1)
    q, k, v = packed.split([8, 2, 2], 1)
    plan = FlashInferFA3().plan(asked)
    expected = Naive().forward(inputs.q, inputs.k, inputs.v, plan)
    buffers = [torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)[..., ::2] for x in expected]
    results = FlashInferFA3().forward(q, k.mT.contiguous().mT, v, plan, out=buffers[0], lse=buffers[1])
    for result, buffer, value in zip(results, buffers, expected, strict=True):
        assert result is buffer
        torch.testing.assert_close(result.double(), value.double(), rtol=1e-4, atol=1e-5)


def test_buffers_grow_where_there_are_many_rows(made):
    bounds = np.arange(16400 + 1)
    many = BlockSparseMask(np.ones((1, 16400, 1)), bounds, [0, 1])
    plan = FlashInferFA3().plan(problem(many, heads_q=2))
    assert made[0]._kv_lens_buffer.shape == (2 * 16400,)
    assert plan.metadata_bytes > 2 * 16400 * 4


def test_a_plan_that_would_not_fit_is_out_of_memory(monkeypatch, made):
    asked = problem(MASKS["blocks of 64"])
    monkeypatch.setattr(module, "available_bytes", lambda device: 8 * 2**20)
    with pytest.raises(torch.OutOfMemoryError, match=r"would allocate .* GiB for lists of \d+ keys"):
        FlashInferFA3().plan(asked)
    assert not made
